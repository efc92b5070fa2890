// What an ISA file of this folder supplies: one run of codes within a row.
#pragma once

#include <cstdint>

#include "plimsoll/format/format.h"

namespace plimsoll::kernels {

struct DequantizeRun {
  const uint8_t* codes;  // [count]
  format::Format format;
  int64_t count;
  const float* scale;  // of element i: scale[i * scale_step]
  int64_t scale_step;  // 1, or 0 with 16 equal entries
  void* output;        // [count]
  format::Format output_format;
};

void dequantize_run_avx2(const DequantizeRun& run);
void dequantize_run_avx512(const DequantizeRun& run);

}  // namespace plimsoll::kernels
