// output = input * factor from one 16- or 32-bit format to another, in one pass: the product in FP32, then one
// rounding, nearest even. An array may come in two parts that are its upper and lower bits: x = data + remainder /
// kRemainderUnit, the sum in FP32. Same bits on every ISA and for any thread count. Any count, any alignment.
#pragma once

#include <cstdint>

#include "plimsoll/format/format.h"

namespace plimsoll::kernels {

// Factor of the remainder that rounding to FP16 cuts off. The remainder is at most half a unit of 2^-10 of the number,
// so times this it is at most as large as the number.
inline constexpr float kRemainderUnit = 0x1p11f;

struct Rescale {
  const void* input = nullptr;                           // [count]
  format::Format input_format = format::Format::kFp32;   // fp32, fp16, bf16
  const void* input_remainder = nullptr;                 // [count] of the input's format
  void* output = nullptr;                                // [count]; may be the input
  format::Format output_format = format::Format::kFp32;  // fp32, fp16, bf16
  void* output_remainder = nullptr;                      // [count] of the output's format: what rounding cut off
  int64_t count = 0;
  float factor = 1;
};

// Returns the amax of the products: NaN > Inf > finite; 0 of none.
float rescale(const Rescale& args);

}  // namespace plimsoll::kernels
