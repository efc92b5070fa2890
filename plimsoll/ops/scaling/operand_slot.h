// The state of one quantized operand under delayed scaling. Its tensors are the named buffers of a module
// (`input_scale`, `input_amax_history`, `input_step`), so they travel with the state dict and no other copy exists.
#pragma once

#include <ATen/core/TensorBody.h>

#include <string>
#include <string_view>

#include "plimsoll/recipe/delayed_scaling.h"
#include "plimsoll/recipe/operand.h"

namespace plimsoll::ops {

struct OperandSlot {
  explicit OperandSlot(recipe::Role role);

  recipe::Role role;
  // Contents may be replaced in place at any time (a checkpoint is loaded). The history may have any length: the next
  // step that uses it gives it the recipe's and keeps the newest rows.
  at::Tensor scale;         // fp32 [1]; 0: none yet
  at::Tensor amax_history;  // fp32 [amax_history_len]
  at::Tensor step;          // int64 [1]: updates so far, the phase of `interval`
};

// "input", "weight", "grad_output": the prefix of a slot's buffers.
std::string_view role_name(recipe::Role role);

// The scale to quantize with now; recipe::kNoScale if the operand has to supply it.
float current_scale(OperandSlot& slot);

// End of a step: first scale, history, next scale. amax is finite and that of the whole step.
void update_slot(OperandSlot& slot, const recipe::DelayedScaling& recipe, float amax);

}  // namespace plimsoll::ops
