#include "plimsoll/nn/t5/coded_weight.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include "plimsoll/ops/dtype.h"
#include "plimsoll/ops/quantize.h"
#include "plimsoll/recipe/operand.h"

namespace plimsoll::nn {

CodedWeight::CodedWeight(const at::Tensor& weight) {
  const at::NoGradGuard no_grad;
  weight_ = ops::quantize(weight, {.granularity = recipe::kPerRow}).tensor;
  packed_ = ops::pack_weight(weight_);
  weight_.data = at::empty({1}, at::kByte).expand(weight.sizes());
}

at::Tensor CodedWeight::multiply(const at::Tensor& x) const {
  TORCH_CHECK(packed_.isa == runtime::matmul_isa(),
              "coded weight: expected the instruction set that it was packed for, got another");
  TORCH_CHECK(x.size(-1) == weight_.data.size(1), "coded weight: expected x [..., ", weight_.data.size(1), "], got ",
              x.sizes());
  const at::NoGradGuard no_grad;
  const at::Tensor rows = ops::as_matrix(x, "coded weight");
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() = weight_.data.size(0);
  at::Tensor output = at::empty(sizes, x.options());
  ops::multiply(
      {.a = ops::plain_values(rows, ops::format_of(x.scalar_type(), "coded weight")), .b = weight_, .packed = &packed_},
      output);
  return output;
}

}  // namespace plimsoll::nn
