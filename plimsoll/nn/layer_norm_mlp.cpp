#include "plimsoll/nn/layer_norm_mlp.h"

#include <ATen/ops/empty.h>

#include <cmath>

#include "plimsoll/amp/fp8_autocast.h"
#include "plimsoll/nn/checks.h"
#include "plimsoll/nn/observed_inputs.h"
#include "plimsoll/nn/report_values.h"
#include "plimsoll/nn/undrawn.h"
#include "plimsoll/ops/activation/activation.h"
#include "plimsoll/ops/linear/linear.h"
#include "plimsoll/ops/tensor/dtype.h"
#include "plimsoll/watch/audit.h"

namespace plimsoll::nn {

LayerNormMlpImpl::LayerNormMlpImpl(int64_t hidden, int64_t ffn_hidden, LayerNormMlpOptions settings)
    : hidden_size(hidden),
      ffn_hidden_size(ffn_hidden),
      options(std::move(settings)),
      activation_(ops::activation_spec(ops::parse_activation(options.activation), options.activation_params)) {
  check_size("LayerNormMlp", "ffn_hidden_size", ffn_hidden_size, 0);
  LayerNormMlpImpl::reset();
}

ops::NormOptions LayerNormMlpImpl::norm_options() const {
  return {.kind = options.normalization, .zero_centered = options.zero_centered_gamma, .epsilon = options.eps};
}

void LayerNormMlpImpl::reset() {
  layer_norm = {};
  layer_norm.register_in(*this, "layer_norm_", hidden_size, norm_options());
  const int64_t fc1_rows = kernels::is_gated(activation_.kind) ? 2 * ffn_hidden_size : ffn_hidden_size;
  weights = {};
  weights.fc1_weight = register_parameter("fc1_weight", at::empty({fc1_rows, hidden_size}));
  if (options.bias) weights.fc1_bias = register_parameter("fc1_bias", at::empty({fc1_rows}));
  weights.fc2_weight = register_parameter("fc2_weight", at::empty({hidden_size, ffn_hidden_size}));
  if (options.bias) weights.fc2_bias = register_parameter("fc2_bias", at::empty({hidden_size}));
  restart_products();
  fc1_ = register_product("fc1");
  fc2_ = register_product("fc2");
  reset_parameters();
}

void LayerNormMlpImpl::reset_parameters() {
  layer_norm.reset(norm_options());
  if (UndrawnParameters::are_wanted()) return;
  const at::NoGradGuard no_grad;
  // As torch::nn::Linear: uniform within 1 / sqrt(in_features).
  const auto draw = [](at::Tensor& tensor, int64_t in_features) {
    const double bound = in_features > 0 ? 1 / std::sqrt(static_cast<double>(in_features)) : 0;
    if (tensor.defined()) tensor.uniform_(-bound, bound);
  };
  draw(weights.fc1_weight, hidden_size);
  draw(weights.fc1_bias, hidden_size);
  draw(weights.fc2_weight, ffn_hidden_size);
  draw(weights.fc2_bias, ffn_hidden_size);
}

void LayerNormMlpImpl::pretty_print(std::ostream& stream) const {
  stream << "plimsoll::nn::LayerNormMlp(hidden_size=" << hidden_size << ", ffn_hidden_size=" << ffn_hidden_size
         << ", activation=" << options.activation << ")";
}

ops::NormOutput LayerNormMlpImpl::run_adapted(const ops::NormInput& input, const ops::MlpScaling& scaling) const {
  const watch::AuditedLayer fc1(fc1_->name);
  ops::NormOutput result = ops::norm(input, norm_options(), ops::dtype_of(scaling.fc1.recipe->high_precision_format()));
  ObservedInputs::show(fc1_->name, result.output);
  const at::Tensor inner = products_[0].adapted(result.output, [&](const at::Tensor& normed) {
    return ops::linear(normed, weights.fc1_weight, weights.fc1_bias, scaling.fc1);
  });
  const at::Tensor activated = ops::activation(inner, activation_);
  const watch::AuditedLayer fc2(fc2_->name);
  ObservedInputs::show(fc2_->name, activated);
  result.output = products_[1].adapted(activated, [&](const at::Tensor& of_fc2) {
    return ops::linear(of_fc2, weights.fc2_weight, weights.fc2_bias, scaling.fc2);
  });
  return result;
}

ops::NormOutput LayerNormMlpImpl::forward(const at::Tensor& x, const at::Tensor& residual,
                                          std::optional<bool> is_first_microbatch) {
  const ops::NormInput input{.x = x, .residual = residual, .weight = layer_norm.weight, .bias = layer_norm.bias};
  const ops::MlpScaling scaling{.fc1 = amp::linear_scaling(fc1_, weights.fc1_weight, is_first_microbatch),
                                .fc2 = amp::linear_scaling(fc2_, weights.fc2_weight, is_first_microbatch)};
  const ops::NormOutput result = has_lora() || ObservedInputs::are_wanted()
                                     ? run_adapted(input, scaling)
                                     : ops::norm_mlp(input, norm_options(), weights, activation_, scaling);
  report_between(fc1_->name, "stream", residual.defined() ? result.sum : x);
  return result;
}

}  // namespace plimsoll::nn
