#include "plimsoll/app/train/high_precision_tail.h"

#include <algorithm>
#include <cmath>
#include <variant>
#include <vector>

#include "plimsoll/nn/scaled_module.h"

namespace plimsoll::app {

double high_precision_tail(const ChosenRecipe& recipe) {
  constexpr double kNvfp4Tail = 0.15;
  const bool is_nvfp4 = std::holds_alternative<recipe::Nvfp4Scaling>(recipe.value.scaling());
  return is_nvfp4 && !recipe.automatic ? kNvfp4Tail : 0;  // a controller finds what to keep
}

double high_precision_tail(const TrainOptions& options) {
  return options.high_precision_tail.value_or(high_precision_tail(options.recipe));
}

int64_t blocks_in_tail(double share, int64_t blocks) {
  if (share >= 1) return blocks;
  const auto rounded = static_cast<int64_t>(std::ceil(share * static_cast<double>(blocks)));
  return std::min(rounded, std::max<int64_t>(blocks - 1, 0));
}

void keep_tail_in_high_precision(models::LanguageModel& model, double share) {
  const std::vector<models::LanguageModel::Unit> units = model.units();
  const int64_t tail = blocks_in_tail(share, static_cast<int64_t>(units.size()));
  std::for_each(units.end() - tail, units.end(), [](const auto& unit) { nn::keep_in_high_precision(*unit.module); });
}

}  // namespace plimsoll::app
