#include "plimsoll/ops/torch_internals/scaled_product.h"

#include <ATen/ops/_scaled_mm.h>

#include <optional>

namespace plimsoll::ops {

void scaled_product(at::Tensor& output, const at::Tensor& a, const at::Tensor& b, const at::Tensor& scale_a,
                    const at::Tensor& scale_b, const at::Tensor& bias) {
  at::_scaled_mm_out(output, a, b.t(), scale_a, scale_b, bias.defined() ? std::optional(bias) : std::nullopt,
                     /*scale_result=*/{}, output.scalar_type(), /*use_fast_accum=*/false);
}

}  // namespace plimsoll::ops
