// AdamW's states from one kind to another, by the rules in kernels/adamw/adamw.h. To nearest: a conversion happens once,
// so its rounding has no mean to keep.
#pragma once

#include <ATen/core/TensorBody.h>

#include "plimsoll/optim/state_kinds.h"

namespace plimsoll::optim {

enum class Moment : uint8_t { kFirst, kSecond };

// Contiguous CPU tensors.
struct KeptMoment {
  at::Tensor values;  // fp32; bf16; int8 of a first moment, uint8 of a second one
  at::Tensor scale;   // fp16 [ceil(numel / 32)] of 8-bit values, else undefined
};

at::ScalarType dtype_of(StateKind kind, Moment moment);
int64_t scale_count(int64_t numel);

at::Tensor wide_moment(const KeptMoment& kept);  // fp32
KeptMoment keep_moment(const at::Tensor& wide, StateKind kind, Moment moment);

// A split weight. narrow: bf16; wide: fp32, of which the nearest bf16 is the other part.
at::Tensor join_weight(const at::Tensor& narrow, const at::Tensor& correction);
at::Tensor correction_of(const at::Tensor& wide);

}  // namespace plimsoll::optim
