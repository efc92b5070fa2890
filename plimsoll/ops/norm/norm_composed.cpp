#include "plimsoll/ops/norm/norm_composed.h"

#include <ATen/ops/layer_norm.h>
#include <ATen/ops/rms_norm.h>

#include <array>

#include "plimsoll/ops/tensor/arguments.h"

namespace plimsoll::ops {

NormOutput composed_norm(const NormInput& input, const NormOptions& options) {
  const at::Tensor sum = input.residual.defined() ? input.x + input.residual : at::Tensor();
  const at::Tensor& x = sum.defined() ? sum : input.x;
  const at::Tensor weight = options.zero_centered ? input.weight + 1 : input.weight;
  const std::array<int64_t, 1> sizes = {x.size(-1)};
  if (options.kind == kernels::NormKind::kRmsNorm)
    return {.output = at::rms_norm(x, sizes, weight, options.epsilon), .sum = sum};
  return {.output = at::layer_norm(x, sizes, weight, optional(input.bias), options.epsilon), .sum = sum};
}

}  // namespace plimsoll::ops
