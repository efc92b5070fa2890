#include "plimsoll/app/train/loss_scale.h"

#include <array>
#include <charconv>
#include <cmath>
#include <limits>

#include "plimsoll/amp/grad_scaler.h"
#include "plimsoll/app/error.h"
#include "plimsoll/recipe/named.h"
#include "plimsoll/runtime/unexpected.h"

namespace plimsoll::app {
namespace {

using Kind = LossScale::Kind;
constexpr std::array<recipe::Named<Kind>, 4> kKinds = {
    {{"recipe", Kind::kOfRecipe}, {"dynamic", Kind::kDynamic}, {"auto", Kind::kAutomatic}, {"none", Kind::kNone}}};

}  // namespace

LossScale parse_loss_scale(const std::string& text) {
  for (const auto& [name, kind] : kKinds) {
    if (name == text) return {.text = text, .kind = kind};
  }
  double scale = 0;
  const char* const end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, scale);
  const auto narrow = static_cast<float>(scale);
  if (parsed.ec != std::errc() || parsed.ptr != end || !(narrow > 0) || !std::isfinite(narrow) ||
      !std::isfinite(1 / narrow)) {
    refuse("--loss-scale: expected dynamic, auto, none, recipe or a positive number that fp32 holds, got '{}'", text);
  }
  return {.text = text, .kind = Kind::kFixed, .fixed = scale};
}

amp::GradScalerOptions LossScale::options(const recipe::Recipe& recipe) const {
  switch (kind) {
    case Kind::kOfRecipe:
      return {.enabled = recipe.high_precision_format() == format::Format::kFp16};
    case Kind::kDynamic:
      return {};
    case Kind::kAutomatic:
      return amp::AutomaticLossScaler().options();
    case Kind::kNone:
      return {.enabled = false};
    case Kind::kFixed:
      return {.init_scale = fixed,
              .growth_interval = std::numeric_limits<int64_t>::max(),
              .min_scale = fixed,
              .max_scale = fixed};
  }
  runtime::unexpected("loss scale", static_cast<int>(kind));
}

}  // namespace plimsoll::app
