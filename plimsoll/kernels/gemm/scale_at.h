// One scale of a ScaleView as FP32. Internal linkage, because ISA files use it: see simd/vector.h.
#pragma once

#include <cstdint>
#include <cstring>

#include "plimsoll/kernels/gemm/gemm.h"

namespace plimsoll::kernels {
namespace {

[[maybe_unused]] float decode_e8m0(uint8_t code) {
  // 2^(code - 127); code 0 is the subnormal 2^-127, 255 is NaN.
  const uint32_t bits = code == 255 ? 0x7fc00000u : code == 0 ? 0x400000u : uint32_t{code} << 23;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

[[maybe_unused]] int64_t block_row_of(const ScaleView& view, int64_t row) {
  return view.block_rows == 0 ? 0 : view.block_rows == 1 ? row : row / view.block_rows;
}

// view.data is set.
[[maybe_unused]] float scale_of_block(const ScaleView& view, int64_t block_row, int64_t block_col) {
  const int64_t index = block_row * view.row_stride + block_col * view.col_stride;
  return view.format == format::Format::kE8m0 ? decode_e8m0(static_cast<const uint8_t*>(view.data)[index])
                                              : static_cast<const float*>(view.data)[index];
}

[[maybe_unused]] float scale_at(const ScaleView& view, int64_t row, int64_t col) {
  return scale_of_block(view, block_row_of(view, row), view.block_cols == 0 ? 0 : col / view.block_cols);
}

// One block along k whose scale is folded into the operand nevertheless: it counts as blocks that all have this scale. Their
// length divides that of every part of k that is packed at once.
[[maybe_unused]] ScaleView folded(ScaleView view) {
  view.block_cols = -64;
  view.col_stride = 0;
  return view;
}

// A block at least as long as k is one block; whether a scale varies along k must not depend on the rows.
[[maybe_unused]] bool varies_along_k(const ScaleView& view, int64_t k) {
  return view.data != nullptr && view.block_cols != 0 && view.block_cols < k;
}

// Whether the scales are part of the decoded values.
[[maybe_unused]] bool folds_scale(const GemmOperand& operand, int64_t k) {
  return operand.format == format::Format::kE2m1 || varies_along_k(operand.scale, k);
}

// Whether the epilogue applies a scale.
[[maybe_unused]] bool scales_sums(const GemmOperand& operand, int64_t k) {
  if (k == 0) return false;  // of no values there is none
  if (operand.format == format::Format::kE2m1) return operand.scale.tensor != nullptr;
  return operand.scale.data != nullptr && !varies_along_k(operand.scale, k);
}

// The scale of a row that the epilogue applies; scales_sums(operand, k).
[[maybe_unused]] float scale_of_sums(const GemmOperand& operand, int64_t row) {
  const ScaleView& scale = operand.scale;
  return operand.format == format::Format::kE2m1 ? scale.tensor[row * scale.tensor_row_stride]
                                                 : scale_at(scale, row, 0);
}

}  // namespace
}  // namespace plimsoll::kernels
