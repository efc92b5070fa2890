// A function of each element by itself on 16-bit data, in one pass that reads each operand once: operands times their
// factors in FP32, the function, a factor, one rounding, nearest even; and what a scale is made of, the results' amax
// and sum of squares. Same bits on every ISA and for any thread count. Any count, any alignment.
#pragma once

#include <cstdint>

#include "plimsoll/format/format.h"

namespace plimsoll::kernels {

enum class Function : uint8_t {
  kSum,      // a + b
  kProduct,  // a b
  kTanh,
  kSigmoid,
  kSilu,
  kGelu,      // by the normal distribution
  kGeluTanh,  // by tanh
  // Functions of a, the gradient of the result, and b: the result of tanh and sigmoid, the argument of the others.
  kTanhGradient,
  kSigmoidGradient,
  kSiluGradient,
  kGeluGradient,
  kGeluTanhGradient,
};
inline constexpr int kFunctions = static_cast<int>(Function::kGeluTanhGradient) + 1;

// y = function(a * a_factor, b * b_factor) * y_factor.
struct Pointwise {
  Function function = Function::kSum;
  format::Format format = format::Format::kFp16;  // of a, b and y: fp16, bf16
  const void* a = nullptr;                        // [count]
  float a_factor = 1;
  const void* b = nullptr;  // [count]; nullptr: the number b_factor, of kSum and kProduct, or no operand
  float b_factor = 1;
  void* y = nullptr;  // [count]; may be a or b
  float y_factor = 1;
  int64_t count = 0;
};

struct PointwiseResult {
  float amax = 0;             // before rounding: NaN > Inf > finite; 0 of none
  double sum_of_squares = 0;  // before rounding; of each 4,096 elements in FP32, which may be Inf
};

PointwiseResult pointwise(const Pointwise& args);

}  // namespace plimsoll::kernels
