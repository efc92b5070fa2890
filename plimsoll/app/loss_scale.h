// How a run scales its loss.
#pragma once

#include <string>

#include "plimsoll/amp/grad_scaler.h"
#include "plimsoll/recipe/recipe.h"

namespace plimsoll::app {

// "dynamic", "auto" (from the histogram of the gradients), "none", a positive number that stays, or "recipe": dynamic
// under fp16, none under the others, whose exponents reach as far as fp32's or whose scales do. Throws UsageError.
amp::GradScalerOptions parse_loss_scale(const std::string& text, const recipe::Recipe& recipe);

}  // namespace plimsoll::app
