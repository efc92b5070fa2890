// Function that an ISA file of this folder supplies: one run of codes within a row.
#pragma once

#include <cstdint>

#include "plimsoll/format/format.h"

namespace plimsoll::kernels {

struct DequantizeRun {
  const uint8_t* codes;  // [count], of E2M1 two a byte
  format::Format format;
  int64_t count;
  const float* scale;   // of element i: scale[i / group_count]
  int64_t group_count;  // >= 1; 16 or 32 for E2M1
  float tensor_scale;   // of E2M1
  void* output;         // [count]
  format::Format output_format;
};

struct DequantizeLoops {
  void (*run)(const DequantizeRun& run);
};

extern const DequantizeLoops kDequantizeLoopsPortable, kDequantizeLoopsAvx2, kDequantizeLoopsAvx512;

}  // namespace plimsoll::kernels
