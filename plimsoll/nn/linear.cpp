#include "plimsoll/nn/linear.h"

#include <cmath>

#include "plimsoll/amp/fp8_autocast.h"
#include "plimsoll/nn/observed_inputs.h"
#include "plimsoll/nn/precision.h"
#include "plimsoll/nn/undrawn.h"
#include "plimsoll/ops/linear/linear.h"
#include "plimsoll/watch/audit.h"

namespace plimsoll::nn {

void reset_linear(const SplitParameter& weight, const SplitParameter& bias, int64_t in_features) {
  if (UndrawnParameters::are_wanted()) return;
  const at::NoGradGuard no_grad;
  const double bound = in_features > 0 ? 1 / std::sqrt(static_cast<double>(in_features)) : 0;
  for (const SplitParameter* parameter : {&weight, &bias}) {
    for (const at::Tensor& part : parameter->parts()) at::Tensor(part).uniform_(-bound, bound);
  }
}

LinearImpl::LinearImpl(int64_t in, int64_t out, LinearOptions settings)
    : in_features(in), out_features(out), options(std::move(settings)) {
  LinearImpl::reset();
}

void LinearImpl::reset() {
  weight = SplitParameter(*this, "weight", options.parameters_split, {out_features, in_features});
  bias = options.bias ? SplitParameter(*this, "bias", options.parameters_split, {out_features}) : SplitParameter();
  restart_products();
  state_ = options.high_precision ? add_product({}, /*has_codes=*/false) : register_product();
  reset_parameters();
}

void LinearImpl::reset_parameters() { reset_linear(weight, bias, in_features); }

void LinearImpl::pretty_print(std::ostream& stream) const {
  stream << "plimsoll::nn::Linear(in_features=" << in_features << ", out_features=" << out_features
         << ", bias=" << std::boolalpha << options.bias << ")";
}

at::Tensor LinearImpl::forward(const at::Tensor& x, std::optional<bool> is_first_microbatch) {
  const watch::AuditedLayer layer(state_->name);
  const at::Tensor whole = weight.joined();
  weight.check_unchanged(is_first_microbatch);
  ops::LinearScaling scaling = options.high_precision ? high_precision_scaling(state_, whole, is_first_microbatch)
                                                      : amp::linear_scaling(state_, whole, is_first_microbatch);
  scaling.save_input = options.save_input;
  ObservedInputs::show(state_->name, x);
  return products_.front().adapted(
      x, [&](const at::Tensor& input) { return ops::linear(input, whole, bias.joined(), scaling); });
}

}  // namespace plimsoll::nn
