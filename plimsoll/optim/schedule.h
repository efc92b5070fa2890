// Learning rates as pure functions of the step, so that a resumed run needs no state.
#pragma once

#include <cstdint>

namespace plimsoll::optim {

// Steps are counted from 0. Warm-up: peak_lr * (step + 1) / warmup_steps, so that the first step moves and the last one
// has the peak. Then from the peak at step warmup_steps down to final_lr at step total_steps, and final_lr for ever
// after.
struct Schedule {
  double peak_lr = 1e-3;
  double final_lr = 0;
  int64_t warmup_steps = 0;
  int64_t total_steps = 1;
};

// final + (peak - final) (1 + cos(pi * progress)) / 2. Loshchilov and Hutter, 2017.
double cosine_lr(const Schedule& schedule, int64_t step);

// peak + (final - peak) * progress.
double linear_lr(const Schedule& schedule, int64_t step);

}  // namespace plimsoll::optim
