// Place of the scale of element (row, col) in a matrix of codes. One aggregate covers per tensor, per row, 1x128,
// 128x128, MX 1x32, NVFP4 1x16 and 16x16.
#pragma once

#include <cstdint>

#include "plimsoll/format/e8m0.h"
#include "plimsoll/format/format.h"
#include "plimsoll/format/fp8.h"
#include "plimsoll/format/host_device.h"

namespace plimsoll::kernels {

// scale(row, col) = data[(row / block_rows) * row_stride + (col / block_cols) * col_stride], where a block size of 0
// means "the whole extent" (index 0). data == nullptr: every scale is 1. format: kFp32 (float) or kE8m0 (uint8_t
// exponents). value = scale * code.
// E2M1 codes have blocks of 16 columns with E4M3 scales (NVFP4) or of 32 with E8M0 scales (MXFP4), and
// value = (code * scale) * tensor scale (format/fp4_block.h).
struct ScaleView {
  const void* data = nullptr;
  format::Format format = format::Format::kFp32;
  int64_t block_rows = 0;
  int64_t block_cols = 0;
  int64_t row_stride = 0;
  int64_t col_stride = 0;
  // Tensor scale of E2M1 codes: that of a row is tensor[row * tensor_row_stride], 1 for nullptr. Tensors that were
  // joined by rows have one each.
  const float* tensor = nullptr;
  int64_t tensor_row_stride = 0;
};

// The scale of a block, by its place among the blocks.
PLIMSOLL_HD inline float scale_in_memory(const ScaleView& view, int64_t block_row, int64_t block_col) {
  if (view.data == nullptr) return 1.0f;
  const int64_t index = block_row * view.row_stride + block_col * view.col_stride;
  const auto* codes = static_cast<const uint8_t*>(view.data);
  if (view.format == format::Format::kE8m0) return format::E8m0::decode(codes[index]);
  if (view.format == format::Format::kE4m3) return format::E4m3::decode(codes[index]);
  return static_cast<const float*>(view.data)[index];
}

}  // namespace plimsoll::kernels
