// How one call of a linear layer is scaled: the recipe, and what the layer keeps between calls.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "plimsoll/ops/linear/inference_weight.h"
#include "plimsoll/ops/linear/linear_parallel.h"
#include "plimsoll/ops/scaling/operand_slot.h"
#include "plimsoll/ops/scaling/scaling_step.h"
#include "plimsoll/ops/tensor/gemm.h"
#include "plimsoll/ops/tensor/scaled_tensor.h"

namespace plimsoll::ops {

// What is_first_microbatch = true keeps for the calls with false.
struct WeightCache {
  Operands operands;
  recipe::OperandRecipe recipe;  // of operands.output
  int64_t version = -1;          // of the weight (its version counter) when it was quantized
  PackedWeight packed;
};

// Codes of the weight that somebody else made as the layer would have (tensor_codes.h), from values with this amax.
struct GivenWeight {
  ScaledTensor codes = {};  // none: the layer quantizes
  float amax = 0;
};

// Owned by the module, shared with the autograd nodes of its calls. Not thread-safe, as the module is not.
struct LinearState {
  explicit LinearState(std::string path = {}) : name(std::move(path)) {}

  std::string name;  // path of the layer for reports: "blocks.0.mlp.fc1"; empty: reports nothing
  OperandSlot input{recipe::Role::kInput};
  OperandSlot weight{recipe::Role::kWeight};
  OperandSlot grad_output{recipe::Role::kGradOutput};
  WeightCache weight_cache;
  InferenceWeight inference_weight;
  GivenWeight given_weight;  // read instead of the values, and observed as if it had been made from them here

  OperandSlot& slot(recipe::Role role);
};

// What linear() keeps of its input for grad_weight.
enum class SaveInput : uint8_t {
  kCodes,  // its codes (the values, where the recipe has none)
  kInput,  // the tensor itself, which costs nothing where the op before it keeps it too; codes are made again
};

struct LinearScaling {
  SharedRecipe recipe = {};                 // nullptr: high precision in the dtype of the weight
  std::shared_ptr<LinearState> state = {};  // nullptr: nothing is kept or reported; delayed scaling needs one
  std::shared_ptr<ScalingStep> step = {};   // nullptr: no amax is recorded
  // nullopt: the weight is quantized at each call, but kept for inference (weight_operands.h). true: quantized and
  // kept. false: what was kept is used; an error if the weight has changed since.
  std::optional<bool> is_first_microbatch = {};
  SaveInput save_input = SaveInput::kCodes;  // read by linear() alone
  LinearParallel parallel = {};              // by default the layer is whole on each rank
  // The weight as its owner holds it: per-tensor codes. Then no value of the weight tensor is read, and no amax of it
  // is recorded.
  ScaledTensor held_weight = {};
  // fp32 [out, in], contiguous: grad_weight is added to it (is_first_microbatch = true: takes its place), and autograd
  // gets none.
  at::Tensor main_grad = {};
};

}  // namespace plimsoll::ops
