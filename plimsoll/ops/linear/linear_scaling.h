// Scaling of one call of a linear layer: the recipe, and the state that the layer keeps between calls.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "plimsoll/ops/linear/linear_parallel.h"
#include "plimsoll/ops/linear/weight_source.h"
#include "plimsoll/ops/scaling/operand_slot.h"
#include "plimsoll/ops/scaling/precision_controller.h"
#include "plimsoll/ops/scaling/scaling_step.h"
#include "plimsoll/ops/tensor/gemm.h"
#include "plimsoll/ops/tensor/scaled_tensor.h"

namespace plimsoll::ops {

// Owned by the module, shared with the autograd nodes of its calls. Not thread-safe, as the module is not.
struct LinearState {
  explicit LinearState(std::string path = {}) : name(std::move(path)) {}

  std::string name;             // path of the layer for reports: "blocks.0.mlp.fc1"; empty: reports nothing
  bool high_precision = false;  // never codes: the model's plan says so, whatever the recipe
  OperandSlot input{recipe::Role::kInput};
  OperandSlot weight{recipe::Role::kWeight};
  OperandSlot grad_output{recipe::Role::kGradOutput};
  WeightSource weight_source;

  OperandSlot& slot(recipe::Role role);
};

// Form in which linear() keeps its input for grad_weight.
enum class SaveInput : uint8_t {
  kCodes,  // its codes (the values, where the recipe has none)
  kInput,  // the tensor itself, which costs nothing where the op before it keeps it too; codes are made again
};

struct LinearScaling {
  SharedRecipe recipe = {};                 // nullptr: high precision in the dtype of the weight
  std::shared_ptr<LinearState> state = {};  // nullptr: nothing is kept or reported; delayed scaling needs one
  std::shared_ptr<ScalingStep> step = {};   // nullptr: no amax is recorded, nor is `precision` told anything
  // Chose `recipe` for this layer, and is told what its operands cost; nullptr: nobody does.
  std::shared_ptr<PrecisionController> precision = {};
  // Whether this is the first of the calls that share a weight (weight_source.h); nullopt: the caller does not say.
  std::optional<bool> is_first_microbatch = {};
  SaveInput save_input = SaveInput::kCodes;  // read by linear() alone
  LinearParallel parallel = {};              // by default the layer is whole on each rank
  GivenCodes given_weight = {};              // of this call: the weight as its owner holds it
  // Seed of the random numbers of this call and its backward pass (recipe::Recipe::is_random); nullopt: drawn from torch's
  // CPU generator.
  std::optional<uint64_t> seed = {};
  at::Device device = at::kCPU;  // of the weight; linear_call() sets it
  // The call runs again, with gradients: a seed is drawn although this run has none, so that what draws after it in a
  // segment that is recomputed gets the same numbers.
  bool runs_again = false;
  // fp32, bf16 or fp16 [out, in], contiguous: grad_weight is added to it (is_first_microbatch = true: takes its place), and autograd
  // gets none.
  at::Tensor main_grad = {};

  // Controller to tell about the call; nullptr: none, or the call runs again (without a step), and it knows.
  PrecisionController* told() const { return step != nullptr && state != nullptr ? precision.get() : nullptr; }
};

// The layer's recipe with the formats in force.
SharedRecipe recipe_for(PrecisionController& precision, const std::shared_ptr<LinearState>& state);
// The same of a call that nothing is learnt from, which adds no layer.
SharedRecipe evaluation_recipe_for(PrecisionController& precision, const std::shared_ptr<LinearState>& state);

}  // namespace plimsoll::ops
