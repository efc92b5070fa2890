#include "plimsoll/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace plimsoll::optim {
namespace {

bool warming_up(const Schedule& schedule, int64_t step) { return step < schedule.warmup_steps; }

double warmup_lr(const Schedule& schedule, int64_t step) {
  return schedule.peak_lr * static_cast<double>(step + 1) / static_cast<double>(schedule.warmup_steps);
}

// 0 at the end of the warm-up, 1 at total_steps and after.
double progress(const Schedule& schedule, int64_t step) {
  const int64_t length = std::max<int64_t>(schedule.total_steps - schedule.warmup_steps, 1);
  return std::min(static_cast<double>(step - schedule.warmup_steps) / static_cast<double>(length), 1.0);
}

}  // namespace

double cosine_lr(const Schedule& schedule, int64_t step) {
  if (warming_up(schedule, step)) return warmup_lr(schedule, step);
  const double share = (1 + std::cos(std::numbers::pi * progress(schedule, step))) / 2;
  return schedule.final_lr + (schedule.peak_lr - schedule.final_lr) * share;
}

double linear_lr(const Schedule& schedule, int64_t step) {
  if (warming_up(schedule, step)) return warmup_lr(schedule, step);
  return std::lerp(schedule.peak_lr, schedule.final_lr, progress(schedule, step));
}

}  // namespace plimsoll::optim
