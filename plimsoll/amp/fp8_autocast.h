// Inside a scope, modules compute under its recipe.
//
//   {
//     amp::Fp8Autocast scope({.recipe = recipe::by_name("fp8")});
//     loss = model->forward(tokens);
//   }
//   loss.backward();  // under the recipe of its forward pass
#pragma once

#include <ATen/core/TensorBody.h>

#include <memory>
#include <optional>
#include <string>

#include "plimsoll/format/format.h"
#include "plimsoll/ops/linear/linear_scaling.h"
#include "plimsoll/ops/scaling/scaling_step.h"
#include "plimsoll/recipe/recipe.h"

namespace plimsoll::amp {

// One recipe for each format that high precision may have; otherwise they are the same.
struct RecipesByFormat {
  ops::SharedRecipe fp32, bf16, fp16;

  const ops::SharedRecipe& of(format::Format format) const;
};

struct Fp8AutocastOptions {
  bool enabled = true;  // false inside another scope: high precision
  recipe::Recipe recipe = recipe::DelayedScaling{};
  std::shared_ptr<const ops::AmaxReduction> reduction = nullptr;  // of the outermost scope
  // Chooses the recipe of each layer; `recipe` is then its narrow one.
  std::shared_ptr<ops::PrecisionController> precision = nullptr;
  // Instead of recipe: high precision is torch's autocast's dtype where that is on, else the parameter's.
  std::shared_ptr<const RecipesByFormat> by_format = nullptr;
};

// Recipe and step of a scope.
struct Fp8Scope {
  ops::SharedRecipe recipe = {};  // none: high precision
  std::shared_ptr<const RecipesByFormat> by_format = {};
  std::shared_ptr<ops::ScalingStep> step = {};               // of the outermost enabled scope
  std::shared_ptr<const ops::AmaxReduction> reduction = {};  // and what its end reduces with
  std::shared_ptr<ops::PrecisionController> precision = {};  // none: every layer computes under `recipe`
};

// Thread-local; the inner of two scopes holds inside it. When the outermost enabled scope ends normally, the forward
// slots update; left by an exception, nothing does.
class Fp8Autocast {
 public:
  explicit Fp8Autocast(Fp8AutocastOptions options = {});
  // Opens the scope of current_scope() again, which may have ended, for what backward computes again. Forward slots do
  // not update.
  explicit Fp8Autocast(Fp8Scope again);
  // Throws what a user's amax or scale function, or the reduction, throws; never while another exception is on its way.
  ~Fp8Autocast() noexcept(false);
  Fp8Autocast(const Fp8Autocast&) = delete;
  Fp8Autocast& operator=(const Fp8Autocast&) = delete;

  // Ends the scope before its destructor does: normally, or as an exception would. Scopes of C++ end in reverse order;
  // those that coroutines hold may end in any, and the ones inside stay in force. Throws c10::Error on another thread
  // than that of the constructor.
  void end();
  void abandon();
  // abandon(), and the step whose forward pass a normal end would finish; none where an outer scope has it.
  std::shared_ptr<ops::ScalingStep> release();

 private:
  void leave();

  Fp8Scope scope_;
  Fp8Autocast* outer_;
  int exceptions_;
  bool owns_step_ = false;
  bool ended_ = false;

  friend Fp8Scope current_scope();
  friend ops::SharedRecipe recipe_for(const at::Tensor& parameter);
};

// State of the innermost scope of this thread; nullptr outside all scopes and where enabled = false.
Fp8Scope current_scope();
ops::SharedRecipe current_recipe();
std::shared_ptr<ops::ScalingStep> current_step();

// Dtype of torch's autocast where that is on for the device; "meta" counts as the CPU.
std::optional<at::ScalarType> torch_autocast_dtype(c10::DeviceType device);

// Recipe that a module with this parameter computes under: the scope's, else high precision in torch's autocast dtype
// where that is on for the parameter's device, else in the parameter's.
ops::SharedRecipe recipe_for(const at::Tensor& parameter);

// Recipe that the controller has for the layer's next call. Without gradients, and where the call does not run again with
// them, no layer is added to the controller's.
ops::SharedRecipe controlled_recipe(ops::PrecisionController& precision,
                                    const std::shared_ptr<ops::LinearState>& state);

// The high precision of `recipe`, or `recipe` where it has no codes. An audit gives the reason for the layer.
ops::SharedRecipe without_codes(const ops::SharedRecipe& recipe, const std::string& layer, const char* reason);

// All that ops::linear and its relatives ask for. A layer that is kept in high precision has no codes.
ops::LinearScaling linear_scaling(std::shared_ptr<ops::LinearState> state, const at::Tensor& weight,
                                  std::optional<bool> is_first_microbatch = std::nullopt);

}  // namespace plimsoll::amp
