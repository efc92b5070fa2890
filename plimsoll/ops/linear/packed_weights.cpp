#include "plimsoll/ops/linear/packed_weights.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include "plimsoll/kernels/gemm/gemm.h"
#include "plimsoll/ops/linear/weight_memory.h"
#include "plimsoll/ops/tensor/dtype.h"
#include "plimsoll/ops/tensor/quantize.h"
#include "plimsoll/recipe/operand.h"

namespace plimsoll::ops {
namespace {

// Bytes of a weight that become codes at a time: a head is large, and its pages are given back as it is read.
constexpr int64_t kPartBytes = int64_t{16} << 20;

at::Tensor joined(const std::vector<at::Tensor>& parts) { return parts.size() == 1 ? parts.front() : at::cat(parts); }

ScaledTensor codes_of_rows(const std::vector<CodeSource>& sources) {
  std::vector<at::Tensor> codes, scales;
  ScaledTensor part;
  for (const auto& [weight, done] : sources) {
    const int64_t rows = weight.size(0);
    const int64_t step =
        std::max<int64_t>(kPartBytes / std::max<int64_t>(weight.size(1) * weight.element_size(), 1), 1);
    for (int64_t begin = 0; begin < rows; begin += step) {
      part = quantize(weight.narrow(0, begin, std::min(step, rows - begin)), {.granularity = recipe::kPerRow}).tensor;
      codes.push_back(part.data);
      scales.push_back(part.scale);
      if (done) done();
    }
  }
  part.data = joined(codes);
  part.scale = joined(scales);
  return part;
}

}  // namespace

ScaledTensor codes_of(const std::vector<CodeSource>& sources, recipe::Granularity granularity) {
  if (granularity == recipe::kPerRow) return codes_of_rows(sources);
  std::vector<at::Tensor> weights;
  for (const CodeSource& source : sources) weights.push_back(source.weight);
  ScaledTensor codes = quantize(joined(weights).contiguous(), {.granularity = granularity}).tensor;
  for (const CodeSource& source : sources) {
    if (source.done) source.done();
  }
  return codes;
}

PackedWeights::PackedWeights(const std::vector<at::Tensor>& weights) {
  const at::NoGradGuard no_grad;
  const format::Format format = format_of(weights.front().scalar_type(), "packed weights");
  pack(plain_values(joined(weights).contiguous(), format));
}

PackedWeights::PackedWeights(const std::vector<CodeSource>& sources) {
  const at::NoGradGuard no_grad;
  pack(codes_of_rows(sources));
}

void PackedWeights::pack(ScaledTensor weight) {
  weight_ = std::move(weight);
  kernels::GemmOperand b = gemm_operand();
  b.data = weight_.data.const_data_ptr();
  const int64_t n = weight_.data.size(0), k = weight_.data.size(1);
  packed_.data = weight_memory(static_cast<int64_t>(kernels::gemm_packed_b_bytes(b, n, k)));
  packed_.isa = runtime::matmul_isa();
  kernels::gemm_pack_b(b, n, k, packed_.data.mutable_data_ptr());
  weight_is_written(packed_.data);
  weight_.data = at::empty({1}, weight_.data.options()).expand(weight_.data.sizes());
}

kernels::GemmOperand PackedWeights::gemm_operand() const {
  return {.format = weight_.format, .row_stride = weight_.data.size(1), .scale = scale_view(weight_, Use::kAsStored)};
}

PackedWeights::Output PackedWeights::multiply(const at::Tensor& x) const {
  TORCH_CHECK(packed_.isa == runtime::matmul_isa(),
              "packed weights: expected the instruction set that they were packed for, got another");
  TORCH_CHECK(x.size(-1) == weight_.data.size(1), "packed weights: expected x [..., ", weight_.data.size(1), "], got ",
              x.sizes());
  const at::NoGradGuard no_grad;
  const at::Tensor rows = as_matrix(x, "packed weights");
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() = weight_.data.size(0);
  at::Tensor values = at::empty(sizes, x.options());
  const format::Format format = format_of(x.scalar_type(), "packed weights");
  const AmaxSlot amax(values.device());
  ops::multiply({.a = plain_values(rows, format), .b = weight_, .amax = amax, .packed = &packed_}, values);
  return {std::move(values), amax};
}

}  // namespace plimsoll::ops
