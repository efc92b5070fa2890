#include "plimsoll/app/loss_scale.h"

#include <charconv>
#include <cmath>
#include <limits>

#include "plimsoll/app/error.h"

namespace plimsoll::app {

amp::GradScalerOptions parse_loss_scale(const std::string& text, const recipe::Recipe& recipe) {
  if (text == "recipe") return {.enabled = recipe.high_precision_format() == format::Format::kFp16};
  if (text == "dynamic") return {};
  if (text == "auto") return amp::AutomaticLossScaler().options();
  if (text == "none") return {.enabled = false};
  double scale = 0;
  const char* const end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, scale);
  const auto narrow = static_cast<float>(scale);
  if (parsed.ec != std::errc() || parsed.ptr != end || !(narrow > 0) || !std::isfinite(narrow) ||
      !std::isfinite(1 / narrow)) {
    refuse("loss scale: expected dynamic, auto, none, recipe or a positive number that fp32 holds, got '{}'", text);
  }
  return {.init_scale = scale,
          .growth_interval = std::numeric_limits<int64_t>::max(),
          .min_scale = scale,
          .max_scale = scale};
}

}  // namespace plimsoll::app
