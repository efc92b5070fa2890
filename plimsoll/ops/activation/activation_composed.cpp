#include "plimsoll/ops/activation/activation_composed.h"

#include <ATen/ops/gelu.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/silu.h>

#include <vector>

#include "plimsoll/runtime/unexpected.h"

namespace plimsoll::ops {
namespace {

using kernels::Activation;

at::Tensor gate(const at::Tensor& x, Activation kind) {
  switch (kind) {
    case Activation::kGelu:
    case Activation::kGeglu:
      return at::gelu(x, "tanh");
    case Activation::kRelu:
    case Activation::kReglu:
      return at::relu(x);
    case Activation::kSilu:
    case Activation::kSwiglu:
      return at::silu(x);
  }
  runtime::unexpected("activation", static_cast<int>(kind));
}

}  // namespace

at::Tensor composed_activation(const at::Tensor& x, Activation kind) {
  if (!kernels::is_gated(kind)) return gate(x, kind);
  const std::vector<at::Tensor> halves = x.chunk(2, -1);
  return gate(halves[0], kind) * halves[1];
}

}  // namespace plimsoll::ops
