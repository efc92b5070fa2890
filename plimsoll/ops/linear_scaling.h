// How one call of a linear layer is scaled: the recipe, and what the layer keeps between calls.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "plimsoll/ops/operand_slot.h"
#include "plimsoll/ops/scaled_tensor.h"
#include "plimsoll/ops/scaling_step.h"

namespace plimsoll::ops {

// The weight as its two products read it. grad_input is undefined until it is wanted.
struct WeightOperands {
  ScaledTensor output;
  ScaledTensor grad_input;
};

// Kept by is_first_microbatch = true for the calls with false.
struct WeightCache {
  WeightOperands operands;
  int64_t version = -1;  // of the weight (its version counter) when it was quantized
  at::Tensor packed;     // operands.output in the GEMM's own layout
  int packed_isa = -1;   // which that layout belongs to
};

// Owned by the module, shared with the autograd nodes of its calls. Not thread-safe, as the module is not.
struct LinearState {
  explicit LinearState(std::string path = {}) : name(std::move(path)) {}

  std::string name;  // path of the layer for reports: "blocks.0.mlp.fc1"; empty: reports nothing
  OperandSlot input{recipe::Role::kInput};
  OperandSlot weight{recipe::Role::kWeight};
  OperandSlot grad_output{recipe::Role::kGradOutput};
  WeightCache weight_cache;

  OperandSlot& slot(recipe::Role role);
};

struct LinearScaling {
  SharedRecipe recipe;                 // nullptr: high precision in the dtype of the weight
  std::shared_ptr<LinearState> state;  // nullptr: nothing is kept or reported; delayed scaling needs one
  std::shared_ptr<ScalingStep> step;   // nullptr: no amax is recorded
  // nullopt: the weight is quantized at each call. true: quantized and kept. false: what was kept is used; an error if
  // the weight has changed since.
  std::optional<bool> is_first_microbatch;
};

}  // namespace plimsoll::ops
