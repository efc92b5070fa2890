// Learning rates as pure functions of the step, so that a resumed run needs no state.
#pragma once

#include <cstdint>

namespace plimsoll::optim {

// Way from the peak to the final rate, by the share of the steps after the warm-up that are done.
enum class Decay : uint8_t {
  kCosine,  // final + (peak - final) (1 + cos(pi * share)) / 2. Loshchilov and Hutter, 2017.
  kLinear,  // peak + (final - peak) * share
};

// Steps are counted from 0. Warm-up: peak_lr * (step + 1) / warmup_steps, so that the first step moves and the last one
// has the peak. Then from the peak at step warmup_steps down to final_lr at step total_steps, and final_lr for ever
// after.
struct Schedule {
  Decay decay = Decay::kCosine;
  double peak_lr = 1e-3;
  double final_lr = 0;
  int64_t warmup_steps = 0;
  int64_t total_steps = 1;
};

double learning_rate(const Schedule& schedule, int64_t step);

}  // namespace plimsoll::optim
