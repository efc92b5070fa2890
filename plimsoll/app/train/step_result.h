// Result of one training step: loss, norm, scale, headroom.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "plimsoll/app/train/run_precision.h"
#include "plimsoll/watch/slots.h"

namespace plimsoll::app {

struct StepResult {
  double loss = 0;     // mean over the step's tokens, nats a byte
  int64_t tokens = 0;  // of all ranks
  double lr = 0;
  double grad_norm = 0;
  std::optional<double> loss_scale;        // of this step, where there is one
  std::optional<double> flushed_share;     // of the gradients at that scale: amp::GradScaler::flushed_share
  std::optional<double> headroom_bits;     // the lowest of all operands; nothing under recipes without codes
  std::string headroom_slot;               // whose it is
  std::vector<watch::Record> slots;        // of all operands, by name, in the steps that log them
  std::optional<StepPrecision> precision;  // under the recipe `auto`
  std::optional<std::string> warning;      // one line: something was not finite
};

}  // namespace plimsoll::app
