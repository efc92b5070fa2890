// Fixes that keep a T5 in plain FP16 from overflowing: the five answers of Graphcore's FLAN-T5 (see docs/t5.md), each a
// switch of its own. With none of them the arithmetic is that of Hugging Face's modules after `.half()`.
#pragma once

#include <array>
#include <optional>

#include "plimsoll/recipe/named.h"

namespace plimsoll::models {

struct T5Fixes {
  double downproject_scale = 1;   // 8: wo reads its input divided by it, and its output is multiplied in FP32
  bool residual_fp32 = false;     // the encoder's residual stream is FP32
  double mask_scale = 1;          // 0.75: of the -65504 that is added to the scores of keys that must not be seen
  double gelu_guard = 0;          // 39: where |x| is larger, GELU is ReLU; elsewhere in FP32. 0: in steps of FP16
  bool no_dynamic_clamp = false;  // nothing is clamped when some element of the batch is infinite
  bool training_clamp = false;    // in training, FP16 residual streams are clamped to +-64504, whatever the batch holds

  friend bool operator==(const T5Fixes&, const T5Fixes&) = default;

  static constexpr T5Fixes seed() {
    return {
        .downproject_scale = 8, .residual_fp32 = true, .mask_scale = 0.75, .gelu_guard = 39, .no_dynamic_clamp = true};
  }
};

// An error that names the switch at fault.
void check(const T5Fixes& fixes);

// Arithmetic of FP16. Other dtypes are computed in the library's way always: FP32 inside each op, keys that must not be
// seen left out by length or mask, nothing clamped. Without a value FP16 is, too.
using T5Numerics = std::optional<T5Fixes>;

// "none": as Hugging Face computes; "gauge": of a gauged model, which needs none.
inline constexpr std::array<recipe::Named<T5Numerics>, 3> kT5Fixes = {
    {{"seed", T5Fixes::seed()}, {"gauge", std::nullopt}, {"none", T5Fixes{}}}};

}  // namespace plimsoll::models
