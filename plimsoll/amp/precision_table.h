// Precision that an operator of torch computes in under autocast: one table for CPU and CUDA. torch knows all rows on
// CUDA and some of them on the CPU; inside an amp::Autocast the rest holds there too (precision_kernels.h).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace plimsoll::amp {

enum class Precision : uint8_t {
  kNarrow,  // in autocast's dtype: what is matrix products inside, and gains from it
  kFp32,    // in fp32: what overflows, or loses what it sums up, in 16 bits
  kWidest,  // in the widest dtype of its inputs, which have to agree
};

struct PrecisionRow {
  std::string_view op;  // of the namespace aten, with its overload: "sum.dim_IntList"
  Precision precision;
};

std::span<const PrecisionRow> precision_table();

}  // namespace plimsoll::amp
