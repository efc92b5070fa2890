#include "plimsoll/ops/activation/activation_composed.h"

#include <ATen/ops/gelu.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>

#include <vector>

#include "plimsoll/runtime/unexpected.h"

namespace plimsoll::ops {
namespace {

at::Tensor on_curve(const at::Tensor& x, kernels::Curve curve) {
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
  }
  runtime::unexpected("activation: curve", static_cast<int>(curve));
}

}  // namespace

at::Tensor composed_activation(const at::Tensor& x, kernels::Activation kind) {
  const kernels::ActivationInfo& activation = kernels::info(kind);
  if (!activation.gated) return on_curve(x, activation.curve);
  const std::vector<at::Tensor> halves = x.chunk(2, -1);
  return on_curve(halves[0], activation.curve) * halves[1];
}

}  // namespace plimsoll::ops
