#include "plimsoll/ops/linear/packed_weights.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <utility>

#include "plimsoll/kernels/gemm/gemm.h"
#include "plimsoll/ops/linear/fp4_codes.h"
#include "plimsoll/ops/linear/weight_memory.h"
#include "plimsoll/ops/tensor/dtype.h"
#include "plimsoll/ops/tensor/quantize.h"
#include "plimsoll/recipe/operand.h"
#include "plimsoll/runtime/unexpected.h"

namespace plimsoll::ops {
namespace {

at::Tensor joined(const std::vector<at::Tensor>& parts) { return parts.size() == 1 ? parts.front() : at::cat(parts); }

// The pages of a file that a copy was made of.
void release_sources(const std::vector<CodeSource>& sources) {
  for (const CodeSource& source : sources) {
    if (source.done) source.done();
  }
}

ScaledTensor joined_e4m3(const std::vector<CodeSource>& sources) {
  ScaledTensor codes{.data = joined_codes(sources), .scale = joined_scales(sources), .format = format::Format::kE4m3};
  codes.granularity = codes.scale.size(1) == 1 ? recipe::kPerRow : recipe::kBlock1x128;
  return codes;
}

ScaledTensor codes_of_rows(const std::vector<CodeSource>& sources) {
  if (sources.front().is_stored()) return joined_e4m3(sources);
  std::vector<at::Tensor> codes, scales;
  ScaledTensor last;
  for_each_part(sources, [&](const at::Tensor& part, int64_t) {
    last = quantize(part, {.granularity = recipe::kPerRow}).tensor;
    codes.push_back(last.data);
    scales.push_back(last.scale);
  });
  last.data = joined(codes);
  last.scale = joined(scales);
  return last;
}

}  // namespace

ScaledTensor codes_of(const std::vector<CodeSource>& sources, recipe::Granularity granularity) {
  if (sources.front().is_stored()) {
    ScaledTensor codes = joined_e4m3(sources);
    if (sources.size() > 1) release_sources(sources);
    return codes;
  }
  if (granularity == recipe::kPerRow) return codes_of_rows(sources);
  std::vector<at::Tensor> weights;
  for (const CodeSource& source : sources) weights.push_back(source.weight);
  ScaledTensor codes = quantize(joined(weights).contiguous(), {.granularity = granularity}).tensor;
  release_sources(sources);
  return codes;
}

PackedWeights::PackedWeights(const std::vector<at::Tensor>& weights) {
  const at::NoGradGuard no_grad;
  const format::Format format = format_of(weights.front().scalar_type(), "packed weights");
  const at::Tensor values = joined(weights).contiguous();
  pack(plain_values({}, format), {.elements = values, .n = values.size(0), .k = values.size(1)});
}

PackedWeights::PackedWeights(const std::vector<CodeSource>& sources, CodeKind kind) {
  const at::NoGradGuard no_grad;
  switch (kind) {
    case CodeKind::kE4m3Rows:
    case CodeKind::kE4m3Blocks: {
      ScaledTensor codes =
          kind == CodeKind::kE4m3Rows ? codes_of_rows(sources) : codes_of(sources, recipe::kBlock1x128);
      const at::Tensor elements = codes.data;
      pack(std::move(codes), {.elements = elements, .n = elements.size(0), .k = elements.size(1)});
      if (sources.front().is_stored()) release_sources(sources);
      return;
    }
    case CodeKind::kNvfp4:
      pack_fp4(sources, format::Fp4Scaling::kNvfp4);
      return;
    case CodeKind::kMxfp4:
      pack_fp4(sources, format::Fp4Scaling::kMxfp4);
      return;
  }
  runtime::unexpected("packed weights: kind of codes", static_cast<int>(kind));
}

void PackedWeights::pack_fp4(const std::vector<CodeSource>& sources, format::Fp4Scaling scaling) {
  const Fp4Codes made = fp4_codes_of(sources, scaling);
  ScaledTensor weight;
  weight.scale = made.tensor_scale;
  weight.format = format::Format::kE2m1;
  weight.length = made.cols;
  weight.granularity = {1, format::fp4_block(scaling)};
  weight.scale_format = format::fp4_scale_format(scaling);
  pack(std::move(weight),
       {.elements = made.codes, .block_scale = made.scale.const_data_ptr(), .n = made.codes.size(0), .k = made.cols});
  if (sources.front().is_stored()) release_sources(sources);
}

void PackedWeights::pack(ScaledTensor weight, const Matrix& matrix) {
  const auto& [elements, block_scale, n, k] = matrix;
  weight_ = std::move(weight);
  weight_.data = at::empty({1}, elements.options()).expand({n, k});
  kernels::GemmOperand b = {.data = elements.const_data_ptr(),
                            .format = weight_.format,
                            .row_stride = elements.size(1) * (weight_.format == format::Format::kE2m1 ? 2 : 1),
                            .scale = scale_view(weight_, Use::kAsStored)};
  if (block_scale != nullptr) b.scale.data = block_scale;
  packed_.data = weight_memory(static_cast<int64_t>(kernels::gemm_packed_b_bytes(b, n, k)));
  packed_.isa = runtime::matmul_isa();
  kernels::gemm_pack_b(b, n, k, packed_.data.mutable_data_ptr());
  weight_is_written(packed_.data);
}

PackedWeights::Output PackedWeights::multiply(const at::Tensor& x) const {
  TORCH_CHECK(packed_.isa == runtime::matmul_isa(),
              "packed weights: expected the instruction set that they were packed for, got another");
  TORCH_CHECK(x.size(-1) == weight_.cols(), "packed weights: expected x [..., ", weight_.cols(), "], got ", x.sizes());
  const at::NoGradGuard no_grad;
  const at::Tensor rows = as_matrix(x, "packed weights");
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() = weight_.rows();
  at::Tensor values = at::empty(sizes, x.options());
  const format::Format format = format_of(x.scalar_type(), "packed weights");
  const AmaxSlot amax(values.device());
  ops::multiply({.a = plain_values(rows, format), .b = weight_, .amax = amax, .packed = &packed_}, values);
  return {std::move(values), amax};
}

}  // namespace plimsoll::ops
