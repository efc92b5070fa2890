#include "plimsoll/nn/layer_norm_linear.h"

#include "plimsoll/amp/fp8_autocast.h"
#include "plimsoll/nn/linear.h"
#include "plimsoll/nn/observed_inputs.h"
#include "plimsoll/nn/report_values.h"
#include "plimsoll/ops/fused/norm_linear.h"
#include "plimsoll/ops/linear/linear.h"
#include "plimsoll/ops/tensor/dtype.h"
#include "plimsoll/watch/audit.h"

namespace plimsoll::nn {

LayerNormLinearImpl::LayerNormLinearImpl(int64_t in, int64_t out, LayerNormLinearOptions settings)
    : in_features(in), out_features(out), options(std::move(settings)) {
  LayerNormLinearImpl::reset();
}

ops::NormOptions LayerNormLinearImpl::norm_options() const {
  return {.kind = options.normalization, .zero_centered = options.zero_centered_gamma, .epsilon = options.eps};
}

void LayerNormLinearImpl::reset() {
  layer_norm = {};
  layer_norm.register_in(*this, "layer_norm_", in_features, norm_options());
  weight = SplitParameter(*this, "weight", options.parameters_split, {out_features, in_features});
  bias = options.bias ? SplitParameter(*this, "bias", options.parameters_split, {out_features}) : SplitParameter();
  restart_products();
  state_ = register_product();
  reset_parameters();
}

void LayerNormLinearImpl::reset_parameters() {
  layer_norm.reset(norm_options());
  reset_linear(weight, bias, in_features);
}

void LayerNormLinearImpl::pretty_print(std::ostream& stream) const {
  stream << "plimsoll::nn::LayerNormLinear(in_features=" << in_features << ", out_features=" << out_features
         << ", bias=" << std::boolalpha << options.bias << ")";
}

ops::NormOutput LayerNormLinearImpl::forward(const at::Tensor& x, const at::Tensor& residual,
                                             std::optional<bool> is_first_microbatch) {
  const watch::AuditedLayer layer(path());
  const at::Tensor whole = weight.joined();
  weight.check_unchanged(is_first_microbatch);
  const ops::LinearScaling scaling = amp::linear_scaling(state_, whole, is_first_microbatch);
  const ops::NormInput input{.x = x, .residual = residual, .weight = layer_norm.weight, .bias = layer_norm.bias};
  ops::NormOutput result;
  if (has_lora() || ObservedInputs::are_wanted()) {
    result = ops::norm(input, norm_options(), ops::dtype_of(scaling.recipe->high_precision_format()));
    ObservedInputs::show(path(), result.output);
    result.output = products_.front().adapted(
        result.output, [&](const at::Tensor& normed) { return ops::linear(normed, whole, bias.joined(), scaling); });
  } else {
    result = ops::norm_linear(input, norm_options(), whole, bias.joined(), scaling);
  }
  report_between(path(), "stream", residual.defined() ? result.sum : x);
  return result;
}

}  // namespace plimsoll::nn
