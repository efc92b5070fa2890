// Loss scaling of a training run, as its options name it.
#pragma once

#include <cstdint>
#include <string>

#include "plimsoll/recipe/recipe.h"

namespace plimsoll::amp {
struct GradScalerOptions;
}

namespace plimsoll::app {

struct LossScale {
  enum class Kind : uint8_t {
    kOfRecipe,  // dynamic under fp16, none under the others, whose exponents reach as far as fp32's or whose scales do
    kDynamic,
    kAutomatic,  // from the histogram of the gradients
    kNone,
    kFixed,
  };

  std::string text = "recipe";  // as typed
  Kind kind = Kind::kOfRecipe;
  double fixed = 0;
  bool is_gauged = false;  // nobody typed it: it follows from the model's certificate and the tokens of a step

  amp::GradScalerOptions options(const recipe::Recipe& recipe) const;
};

// "recipe", "dynamic", "auto", "none", or a positive number that stays. Throws UsageError.
LossScale parse_loss_scale(const std::string& text);

}  // namespace plimsoll::app
