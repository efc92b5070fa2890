#include "plimsoll/gauge/loss_scale_choice.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace plimsoll::gauge {
namespace {

constexpr double kMostScale = 65536;  // where dynamic loss scaling begins
constexpr double kScaleStep = 4;
constexpr double kNearBest = 1.25;  // of the least error: nothing that training would see

}  // namespace

LossScaleChoice choose_loss_scale(const std::function<double(double)>& error, double most) {
  LossScaleChoice choice;
  double least = std::numeric_limits<double>::infinity();
  for (double scale = 1; scale == 1 || scale <= std::min(most, kMostScale); scale *= kScaleStep) {
    const double found = error(scale);
    choice.trials.push_back({scale, std::isfinite(found) ? found : std::numeric_limits<double>::infinity()});
    least = std::min(least, choice.trials.back().error);
  }
  const auto chosen = std::find_if(choice.trials.begin(), choice.trials.end(),
                                   [&](const LossScaleTrial& trial) { return trial.error <= kNearBest * least; });
  choice.loss_scale = chosen->loss_scale;
  choice.error = chosen->error;
  return choice;
}

}  // namespace plimsoll::gauge
