// Controller of the recipe `auto` (recipe/automatic_rule.h) over the layers of a run: it gives each layer the recipe with
// the formats in force, collects what quantizing its operands cost, and decides at the end of a step. Ranks agree: they
// decide by the worst measurement of all of them.
//
//   auto controller = std::make_shared<ops::PrecisionController>(recipe::automatic_from_text("auto"));
//   amp::Fp8Autocast scope({.recipe = controller->recipe().at({}), .precision = controller});
//   ... train ...
//   const std::vector<ops::PrecisionChange> changes = controller->end_step({.step = 0, .steps = 100}, nullptr);
#pragma once

#include <ATen/core/TensorBody.h>

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "plimsoll/ops/scaling/scaling_step.h"
#include "plimsoll/ops/tensor/scale_ref.h"
#include "plimsoll/recipe/automatic_rule.h"

namespace plimsoll::ops {

// A layer's slots, by Role. The gradient's is the layer's identity; copies of its state share that slot's scale.
using LayerSlots = std::array<SharedSlot, 3>;

// Cost of the codes of one operand, still in the memory of the device. Every product that reads such codes has it.
struct OperandCost {
  recipe::Role role = recipe::Role::kInput;
  recipe::OperandRecipe operand = {};  // as it is stored
  AmaxSlot amax = {};
  ScaleRef scale = {};        // of the whole tensor; undefined: scales of blocks, which leave no headroom
  at::Tensor statistic = {};  // fp32 [5], kernels::QuantizeStatistic; undefined: not measured
};

struct PrecisionChange {
  std::string layer;
  recipe::GemmKind gemm = recipe::GemmKind::kOutput;
  int64_t step = 0;  // counted from 0: the step that was measured; the next one runs in the other format
  std::string from, to;
  recipe::Decision decision;
};

// "output", "grad_input" or "grad_weight".
std::string_view name_of(recipe::GemmKind gemm);
// One line: "blocks.0.mlp.fc1 grad_input: e4m3 -> bf16 after step 120, error of weight 0.081 above 0.049".
std::string describe(const PrecisionChange& change);

struct ProductPrecision {
  recipe::ProductState state = {};
  std::optional<recipe::Decision> last = {};  // the change that gave the product its rung
  double multiply_adds = 0;                   // in the last step
};

struct LayerPrecision {
  std::string layer;
  std::array<ProductPrecision, 3> products = {};  // by GemmKind
};

class PrecisionController {
 public:
  explicit PrecisionController(recipe::Automatic recipe);

  const recipe::Automatic& recipe() const { return recipe_; }
  const std::string& format_of(const recipe::ProductState& state) const;

  // Recipe of the layer's next call. The first call of a layer adds it, or gives it what was restored under its name.
  // Later layers of one name are called NAME#2, NAME#3, ...; those without are "layer 0", "layer 1", ...
  SharedRecipe recipe_for(const std::string& name, const LayerSlots& slots);
  // Recipe of a call that nothing is learnt from. A layer that is not known is not added, as a copy of a model that is evaluated
  // beside it: it has the formats of the layer of its name, or, as a first call would, the narrowest.
  SharedRecipe evaluation_recipe_for(const std::string& name, const OperandSlot& grad_output);
  // The layer's product is in its format for this reason.
  std::string reason_for(const std::string& name, const OperandSlot& grad_output, recipe::GemmKind gemm) const;

  // Whether operands of this step are to be measured.
  bool measures() const { return measures_; }
  // Both take the layer's grad_output slot, and do nothing for a layer that recipe_for() has not seen.
  void see(const OperandSlot& grad_output, OperandCost cost);
  void count(const OperandSlot& grad_output, recipe::GemmKind gemm, double multiply_adds);

  // Forgets what was seen in a step, counted from 0, that came to nothing.
  void abandon_step(int64_t step);
  // Decides. reduction: none of one rank. A collective of all ranks otherwise.
  std::vector<PrecisionChange> end_step(const recipe::Clock& clock, const AmaxReduction* reduction);

  // In the order in which layers were first called.
  std::vector<LayerPrecision> layers() const;
  // Multiply-adds by rung: of the last step, and of all steps.
  const std::vector<double>& step_multiply_adds() const { return step_multiply_adds_; }
  const std::vector<double>& multiply_adds() const { return multiply_adds_; }

  // Goes on where another controller of the same recipe was. next_step: the first one to come. Throws c10::ValueError:
  // a rung that the ladder does not have, a layer twice, another number of multiply-adds.
  void restore(int64_t next_step, const std::vector<LayerPrecision>& layers, std::vector<double> multiply_adds);

 private:
  struct Layer {
    LayerPrecision precision;
    LayerSlots slots;
    SharedRecipe recipe;
    std::vector<OperandCost> costs;  // of this step
    std::array<double, 3> multiply_adds = {};
    const void* scale = nullptr;  // its key in by_scale_
  };

  void follow(Layer& layer);
  std::string free_name(const std::string& name) const;
  Layer* find(const OperandSlot& grad_output);
  const Layer* find(const OperandSlot& grad_output) const;
  const LayerPrecision& precision_of(const std::string& name) const;
  SharedRecipe recipe_at(const LayerPrecision& layer);
  void start_slots_anew(Layer& layer, recipe::GemmKind moved) const;
  void choose_measured(int64_t next_step);

  recipe::Automatic recipe_;
  bool measures_ = true;
  mutable std::mutex mutex_;  // backward passes have threads of their own
  std::vector<std::unique_ptr<Layer>> layers_;
  std::unordered_map<const OperandSlot*, Layer*> by_slot_;  // the gradient's, which the layer keeps
  std::unordered_map<const void*, Layer*> by_scale_;        // that slot's scale
  std::unordered_map<std::string, const Layer*> by_name_;
  std::unordered_map<std::string, LayerPrecision> restored_;
  std::unordered_map<int64_t, SharedRecipe> recipes_;       // a digit of the number of rungs for each product
  std::vector<double> step_multiply_adds_, multiply_adds_;  // by rung
};

}  // namespace plimsoll::ops
