#include "plimsoll/autoscale/codes.h"

#include <algorithm>
#include <cmath>
#include <mutex>

#include "plimsoll/ops/tensor/dtype.h"
#include "plimsoll/ops/tensor/quantize.h"

namespace plimsoll::autoscale {
namespace {

// Binades between the rms of the data and the bound of them: with more, it is worth looking how large they are.
constexpr double kLooseBound = 8;

// The largest element of data, as log2. The bound, where that is near enough or something is not finite.
double largest_of(const at::Tensor& matrix, const Scale& scale) {
  if (scale.bound - scale.remainder <= kLooseBound) return scale.bound;
  const float amax = ops::amax(matrix);
  return std::isfinite(amax) && amax > 0 ? std::log2(static_cast<double>(amax)) : std::min(scale.bound, kHeadroom + 1);
}

// All elements of a dense memory, in the order in which they lie.
at::Tensor as_rows(const at::Tensor& memory) {
  const int64_t count = memory.numel();
  int64_t columns = 1;
  for (int64_t i = 0; i < memory.dim(); ++i)
    if (memory.stride(i) == 1) columns = std::max(columns, memory.size(i));
  return memory.as_strided({count / columns, columns}, {columns, 1});
}

// Codes of a matrix without gaps between its rows; none if it is not finite, because codes have no Inf.
Codes encode(const at::Tensor& matrix, const Scale& scale, at::ScalarType dtype) {
  const format::Format format = operand_format(dtype);
  const double room = std::log2(static_cast<double>(format::max_finite(format)));
  const auto exponent = static_cast<int32_t>(std::ceil(largest_of(matrix, scale) - room));
  const float step = std::exp2(static_cast<float>(exponent));
  const ops::Quantized quantized = ops::quantize(matrix, {.format = format, .scale = ops::ScaleRef::of(step)});
  if (!std::isfinite(quantized.amax.read_on_host())) return {};
  return {.data = quantized.tensor.data.view(dtype), .exponent = exponent};
}

// Threads may read one weight at once, and each may be the first to ask for its codes. Held for a copy of two fields.
std::mutex codes_mutex;

Codes codes_beside(const SharedScale& shared) {
  const std::lock_guard lock(codes_mutex);
  return shared.codes;
}

void keep_beside(SharedScale& shared, const Codes& codes) {
  const std::lock_guard lock(codes_mutex);
  shared.codes = codes;
}

}  // namespace

format::Format operand_format(at::ScalarType dtype) {
  if (dtype == at::kFloat8_e4m3fn) return format::Format::kE4m3;
  if (dtype == at::kFloat8_e5m2) return format::Format::kE5m2;
  return ops::format_of(dtype, "autoscale");
}

void encode_operand(Operand& operand, at::ScalarType dtype) {
  if (operand.scale.is_zero() || operand.data.numel() == 0) return;
  const bool scaled = is_scaled(operand.tensor);
  at::Tensor memory = scaled ? scaled_impl(operand.tensor).shared().base : operand.data.contiguous();
  if (!memory.is_non_overlapping_and_dense()) return;
  Codes codes;
  if (scaled) codes = codes_beside(scaled_impl(operand.tensor).shared());
  if (!codes.data.defined() || codes.data.scalar_type() != dtype) {
    codes = encode(as_rows(memory), operand.scale, dtype);
    if (!codes.data.defined()) return;
    if (scaled) keep_beside(scaled_impl(operand.tensor).shared(), codes);
  }
  const at::Tensor& viewed = scaled ? operand.data : memory;
  operand.data =
      codes.data.as_strided(viewed.sizes(), viewed.strides(), viewed.storage_offset() - memory.storage_offset());
  operand.scale = with_exponent(operand.scale, operand.scale.exponent + codes.exponent);
}

}  // namespace plimsoll::autoscale
