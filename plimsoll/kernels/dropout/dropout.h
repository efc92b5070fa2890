// Elements of an array that stay, and zeros in place of the others. Which ones stay is drawn from a hash of each element's
// place, so backward draws it again and nothing is kept. Same bits on every ISA and for any thread count. Any count, any
// alignment.
#pragma once

#include <cstdint>

#include "plimsoll/format/format.h"
#include "plimsoll/runtime/rounding_words.h"

namespace plimsoll::kernels {

struct Dropout {
  const void* x = nullptr;                        // [count]
  format::Format format = format::Format::kFp32;  // of x and y: fp32, bf16, fp16
  void* y = nullptr;                              // [count]; may be x
  bool accumulate = false;                        // y += what stays, one rounding
  int64_t count = 0;
  runtime::RoundingWords words;
  double probability = 0;  // of an element to become zero, in [0, 1), to 2^-32
};

// Values that stay are not scaled.
void dropout(const Dropout& args);

}  // namespace plimsoll::kernels
