// One AdamW step on one tensor in one pass: reads the gradient, updates the weight and both moments where they are kept.
// Numerics: docs/numerics.md, "adamw".
//   g = grad * grad_scale + l2 w;  m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
//   w = w (1 - lr weight_decay) - lr / (1 - beta1^step) * m / (sqrt(v / (1 - beta2^step)) + eps)
// The rule of torch.optim.AdamW (decoupled decay). Coefficients in double, elements in FP32. Same bits on every ISA and
// thread count. Any count >= 0, any alignment. Non-finite gradients reach the weights: the caller skips such a step.
#pragma once

#include <cstdint>

#include "plimsoll/format/format.h"

namespace plimsoll::kernels {

// Elements that share a scale of 8-bit states.
inline constexpr int64_t kStateGroup = 32;

// Format in which moments are kept.
enum class StateKind : uint8_t {
  kFp32,
  // Stochastic rounding: to nearest, a second moment that moves by 1 - beta2 = 0.1 % a step would stand still (half a
  // unit of BF16 is 0.2 %).
  kBf16,
  // 32 elements share a scale, the least FP16 number that is not below the largest of |m|, or of sqrt(v).
  //   m = scale * x, x = y / (2 - |y|), y = int8 / 127 = 2 x / (1 + |x|), rounded stochastically;
  //   sqrt(v) = scale * uint8 / 255, rounded stochastically so that the mean of v is exact; above 0 it is at least 1 / 255.
  // A magnitude above 65504 becomes that; one that is not finite makes its group NaN.
  k8Bit,
};

// The weight: `master` in FP32, `narrow` then being an optional copy, nearest even. Without a master `narrow` is
// the weight, in BF16: with a correction w = narrow + correction / 127 * ulp(narrow) / 2, both to nearest; without one it
// is rounded stochastically.
struct AdamW {
  float* master = nullptr;                               // [count]
  void* narrow = nullptr;                                // [count]
  format::Format narrow_format = format::Format::kBf16;  // bf16; of a copy fp16, too
  int8_t* correction = nullptr;                          // [count]

  const void* grad = nullptr;                          // [count]
  format::Format grad_format = format::Format::kFp32;  // fp32, bf16, fp16

  StateKind states = StateKind::kFp32;
  void* moment1 = nullptr;     // [count] fp32, bf16 or int8
  void* moment2 = nullptr;     // [count] fp32, bf16 or uint8
  uint16_t* scale1 = nullptr;  // [ceil(count / 32)] fp16, of 8-bit states
  uint16_t* scale2 = nullptr;

  // Element i is rounded by word first + i of runtime::RoundingWords(seed, step): the upper half for moment1 and for a
  // weight alone in BF16, the lower half for moment2.
  uint64_t seed = 0;  // of this tensor
  int64_t first = 0;  // place of element 0, where the tensor is part of another; of 8-bit states a multiple of 32
  int64_t count = 0;

  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 1e-2;  // decoupled
  double l2 = 0;               // of torch.optim.Adam: l2 * w is part of the gradient
  int64_t step = 1;            // of this update, from 1
  float grad_scale = 1.0f;     // inverse loss scale times clip factor
};

// Returns the amax of the new weights before they are rounded: NaN > Inf > finite; 0 for count = 0.
float adamw(const AdamW& args);

}  // namespace plimsoll::kernels
