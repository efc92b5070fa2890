#include "plimsoll/kernels/gemm/gemm_far_scales.h"

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <limits>

#include "plimsoll/kernels/gemm/scale_at.h"

namespace plimsoll::kernels {
namespace {

// Sums of products of codes are multiples of 2^-32 (E5M2's smallest number squared) below 2^63 (its largest squared,
// 2^31 times): times a factor in here they are normal. Codes of NVFP4 times block scales are multiples of 2^-10 up to
// 2688.
constexpr float kLeastOfCodes = 0x1p-94f, kMostOfCodes = 0x1p64f;

bool sums_codes(const GemmOperand& operand, int64_t k) {
  if (operand.format == format::Format::kE2m1) return operand.scale.format == format::Format::kE4m3;
  return format::is_fp8(operand.format) && !varies_along_k(operand.scale, k);
}

// To FP32's 24 bits, nearest even, whatever the exponent. |x| is 0, or from 2^-298 to 2^256, or not finite.
double rounded_to_24_bits(double x) {
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  const uint64_t half = 0x0fffffff + ((bits >> 29) & 1);
  return std::bit_cast<double>((bits + half) & ~uint64_t{0x1fffffff});
}

}  // namespace

FarScales::FarScales(const Gemm& args, const float* row_scale) : row_scale_(row_scale) {
  const bool scales_rows = scales_sums(args.a, args.k), scales_columns = scales_sums(args.b, args.k);
  const bool has_alpha = args.epilogue.alpha != 1;
  // One factor alone is one multiplication.
  if (scales_rows + scales_columns + has_alpha < 2) return;
  if (!scales_columns) {
    least_ = FLT_MIN;  // alpha times the row's scale, which is rounded, too
    most_ = FLT_MAX;
  } else if (sums_codes(args.a, args.k) && sums_codes(args.b, args.k)) {
    least_ = kLeastOfCodes;
    most_ = kMostOfCodes;
  } else {
    least_ = std::numeric_limits<float>::infinity();  // sums of any size
  }
  const auto far = [this](float scale) { return is_far(std::fabs(scale)); };
  if (std::none_of(row_scale, row_scale + args.m, far)) return;
  const double alpha = args.epilogue.alpha;
  exact_rows_.resize(static_cast<size_t>(args.m), alpha);
  for (int64_t i = 0; scales_rows && i < args.m; ++i) {
    exact_rows_[static_cast<size_t>(i)] = rounded_to_24_bits(alpha * double{scale_of_sums(args.a, i)});
  }
  ones_.assign(static_cast<size_t>(std::max(args.m, args.n)), 1.0f);
}

bool FarScales::holds(int64_t first_row, int64_t rows) const {
  if (exact_rows_.empty()) return false;
  const float* scale = row_scale_ + first_row;
  return std::any_of(scale, scale + rows, [this](float x) { return is_far(std::fabs(x)); });
}

void FarScales::apply(const Tile& tile) const {
  for (int64_t i = 0; i < tile.rows; ++i) {
    const double row = exact_rows_[static_cast<size_t>(tile.first_row + i)];
    float* values = tile.values + i * tile.stride;
    for (int64_t j = 0; j < tile.columns; ++j) {
      values[j] = static_cast<float>(rounded_to_24_bits(double{values[j]} * row) * double{tile.column_scale[j]});
    }
  }
}

}  // namespace plimsoll::kernels
