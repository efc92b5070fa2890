#include "plimsoll/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "plimsoll/runtime/unexpected.h"

namespace plimsoll::optim {
namespace {

// 0 at the end of the warm-up, 1 at total_steps and after.
double progress(const Schedule& schedule, int64_t step) {
  const int64_t length = std::max<int64_t>(schedule.total_steps - schedule.warmup_steps, 1);
  return std::min(static_cast<double>(step - schedule.warmup_steps) / static_cast<double>(length), 1.0);
}

}  // namespace

double learning_rate(const Schedule& schedule, int64_t step) {
  if (step < schedule.warmup_steps) {
    return schedule.peak_lr * static_cast<double>(step + 1) / static_cast<double>(schedule.warmup_steps);
  }
  const double share = progress(schedule, step);
  switch (schedule.decay) {
    case Decay::kCosine:
      return schedule.final_lr +
             (schedule.peak_lr - schedule.final_lr) * ((1 + std::cos(std::numbers::pi * share)) / 2);
    case Decay::kLinear:
      return std::lerp(schedule.peak_lr, schedule.final_lr, share);
  }
  runtime::unexpected("learning rate: decay", static_cast<int>(schedule.decay));
}

}  // namespace plimsoll::optim
