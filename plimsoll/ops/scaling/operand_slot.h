// The state of one quantized operand under delayed scaling. Its tensors are the named buffers of a module
// (`input_scale`, `input_amax_history`, `input_step`), so they travel with the state dict and no other copy exists.
#pragma once

#include <ATen/core/TensorBody.h>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "plimsoll/ops/tensor/scale_ref.h"
#include "plimsoll/recipe/delayed_scaling.h"
#include "plimsoll/recipe/operand.h"

namespace plimsoll::ops {

class OperandSlot {
 public:
  explicit OperandSlot(recipe::Role role);

  recipe::Role role;
  // Contents may be replaced in place at any time (a checkpoint is loaded). The history may have any length: the next
  // step that uses it gives it the recipe's and keeps the newest rows.
  at::Tensor scale;         // fp32 [1]; 0: none yet
  at::Tensor amax_history;  // fp32 [amax_history_len]
  at::Tensor step;          // int64 [1]: updates so far, the phase of `interval`

  // The scale as a number, to compare it; kNoScale: none yet. The buffers are on the CPU, whatever the operand's device.
  float value_on_host();
  bool has_scale() { return value_on_host() != recipe::kNoScale; }
  // The scale to quantize an operand with, on the CPU, in memory that no later step changes. Where there is none yet, it
  // follows from the operand's amax, which the host reads at once: it waits for the operand's device.
  ScaleRef scale_for(const recipe::DelayedScaling& recipe, const std::function<AmaxSlot()>& find_amax);

  // The part of the slot that the end of a step needs.
  struct Reading {
    float scale;
    float amax;  // finite, that of the whole step
  };
  const at::Tensor& scale_memory();
  // End of a step: first scale, history, next scale. update_of() runs a user's functions, which may throw, and changes nothing.
  struct Update {
    float scale;
    std::vector<float> amax_history;
  };
  Update update_of(const recipe::DelayedScaling& recipe, const Reading& reading);
  void take(const Update& update);

  // A slot of its own with the scale of now.
  OperandSlot pinned();
};

// "input", "weight", "grad_output": the prefix of a slot's buffers.
std::string_view role_name(recipe::Role role);

}  // namespace plimsoll::ops
