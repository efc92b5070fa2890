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

#include "plimsoll/ops/linear_scaling.h"
#include "plimsoll/ops/scaling_step.h"
#include "plimsoll/recipe/recipe.h"

namespace plimsoll::amp {

struct Fp8AutocastOptions {
  bool enabled = true;  // false inside another scope: high precision
  recipe::Recipe recipe = recipe::DelayedScaling{};
  std::shared_ptr<const ops::AmaxReduction> reduction = nullptr;  // of the outermost scope
};

// Thread-local; the inner of two scopes holds inside it. When the outermost enabled scope ends normally, the forward
// slots update; left by an exception, nothing does.
class Fp8Autocast {
 public:
  explicit Fp8Autocast(Fp8AutocastOptions options = {});
  // Throws what a user's amax or scale function, or the reduction, throws; never while another exception is on its way.
  ~Fp8Autocast() noexcept(false);
  Fp8Autocast(const Fp8Autocast&) = delete;
  Fp8Autocast& operator=(const Fp8Autocast&) = delete;

  // Ends the scope before its destructor does: normally, or as an exception would. Scopes end in reverse order.
  void end();
  void abandon();

 private:
  void leave();

  ops::SharedRecipe recipe_;
  std::shared_ptr<ops::ScalingStep> step_;
  Fp8Autocast* outer_;
  int exceptions_;
  bool owns_step_ = false;
  bool ended_ = false;

  friend ops::SharedRecipe current_recipe();
  friend std::shared_ptr<ops::ScalingStep> current_step();
};

// Of the innermost scope of this thread; nullptr outside all and where enabled = false.
ops::SharedRecipe current_recipe();
std::shared_ptr<ops::ScalingStep> current_step();

// What a module with this parameter computes under: the scope's recipe, else high precision in torch's autocast dtype
// where that is on, else in the parameter's.
ops::SharedRecipe recipe_for(const at::Tensor& parameter);

// All that ops::linear and its relatives ask for.
ops::LinearScaling linear_scaling(std::shared_ptr<ops::LinearState> state, const at::Tensor& weight,
                                  std::optional<bool> is_first_microbatch = std::nullopt);

}  // namespace plimsoll::amp
