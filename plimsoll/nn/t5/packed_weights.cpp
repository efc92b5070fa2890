#include "plimsoll/nn/t5/packed_weights.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include "plimsoll/ops/dtype.h"
#include "plimsoll/ops/quantize.h"
#include "plimsoll/recipe/operand.h"

namespace plimsoll::nn {
namespace {

at::Tensor joined(const std::vector<at::Tensor>& parts) { return parts.size() == 1 ? parts.front() : at::cat(parts); }

ops::ScaledTensor codes_of(const std::vector<at::Tensor>& weights) {
  std::vector<at::Tensor> codes, scales;
  ops::ScaledTensor result;
  for (const at::Tensor& weight : weights) {
    result = ops::quantize(weight, {.granularity = recipe::kPerRow}).tensor;
    codes.push_back(result.data);
    scales.push_back(result.scale);
  }
  result.data = joined(codes);
  result.scale = joined(scales);
  return result;
}

ops::ScaledTensor values_of(const std::vector<at::Tensor>& weights) {
  return ops::plain_values(joined(weights).contiguous(),
                           ops::format_of(weights.front().scalar_type(), "packed weights"));
}

}  // namespace

PackedWeights::PackedWeights(const std::vector<at::Tensor>& weights, Form form) {
  const at::NoGradGuard no_grad;
  weight_ = form == Form::kCodes ? codes_of(weights) : values_of(weights);
  packed_ = ops::pack_weight(weight_);
  weight_.data = at::empty({1}, weight_.data.options()).expand(weight_.data.sizes());
}

at::Tensor PackedWeights::multiply(const at::Tensor& x) const {
  TORCH_CHECK(packed_.isa == runtime::matmul_isa(),
              "packed weights: expected the instruction set that they were packed for, got another");
  TORCH_CHECK(x.size(-1) == weight_.data.size(1), "packed weights: expected x [..., ", weight_.data.size(1), "], got ",
              x.sizes());
  const at::NoGradGuard no_grad;
  const at::Tensor rows = ops::as_matrix(x, "packed weights");
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() = weight_.data.size(0);
  at::Tensor output = at::empty(sizes, x.options());
  const format::Format format = ops::format_of(x.scalar_type(), "packed weights");
  ops::multiply({.a = ops::plain_values(rows, format), .b = weight_, .packed = &packed_}, output);
  return output;
}

}  // namespace plimsoll::nn
