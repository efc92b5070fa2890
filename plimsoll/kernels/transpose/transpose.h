// output[col, row] = x[row, col] for elements of 1, 2 or 4 bytes, which are moved and never interpreted. Any rows, cols
// >= 0, any alignment; strides in elements. x and output may not overlap.
#pragma once

#include <cstdint>

namespace plimsoll::kernels {

struct Transpose {
  const void* x = nullptr;    // [rows, cols]
  int64_t element_bytes = 1;  // 1, 2, 4
  int64_t rows = 0, cols = 0;
  int64_t x_stride = 0;
  void* output = nullptr;  // [cols, rows]
  int64_t output_stride = 0;
};
void transpose(const Transpose& args);

}  // namespace plimsoll::kernels
