#include "plimsoll/ops/activation/activation_composed.h"

#include <ATen/ops/clamp.h>
#include <ATen/ops/clamp_max.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>

#include <vector>

#include "plimsoll/runtime/unexpected.h"

namespace plimsoll::ops {
namespace {

at::Tensor on_curve(const at::Tensor& x, kernels::Curve curve, const kernels::ActivationParameters& parameters) {
  switch (curve) {
    case kernels::Curve::kGelu:
      return at::gelu(x, "tanh");
    case kernels::Curve::kRelu:
      return at::relu(x);
    case kernels::Curve::kSilu:
      return at::silu(x);
    case kernels::Curve::kSquaredRelu:
      return at::relu(x).square();
    case kernels::Curve::kQuickGelu:
      return x * at::sigmoid(1.702 * x);
    case kernels::Curve::kSigmoid:
      return at::sigmoid(x);
    case kernels::Curve::kGeluErf:
      return at::gelu(x);
    case kernels::Curve::kClampedSilu: {
      const at::Tensor gate = at::clamp_max(x, parameters[0]);
      return gate * at::sigmoid(parameters[1] * gate);
    }
  }
  runtime::unexpected("activation: curve", static_cast<int>(curve));
}

// The value that the curve gates.
at::Tensor gated_value(const at::Tensor& value, const kernels::ActivationSpec& spec) {
  if (spec.kind != kernels::Activation::kClampedSwiglu) return value;
  return at::clamp(value, -spec.parameters[0], spec.parameters[0]) + spec.parameters[2];
}

}  // namespace

at::Tensor composed_activation(const at::Tensor& x, const kernels::ActivationSpec& spec) {
  const kernels::ActivationInfo& activation = kernels::info(spec.kind);
  if (!activation.gated) return on_curve(x, activation.curve, spec.parameters);
  const std::vector<at::Tensor> halves = x.chunk(2, -1);
  return on_curve(halves[0], activation.curve, spec.parameters) * gated_value(halves[1], spec);
}

}  // namespace plimsoll::ops
