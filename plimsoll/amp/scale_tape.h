// Tape of the scales that the layers of a stretch of code ran with, so that a second run of the same calls (activation
// recompute) has the same bits and leaves their state alone.
#pragma once

#include <memory>
#include <vector>

#include "plimsoll/ops/linear/linear_scaling.h"

namespace plimsoll::amp {

class ScaleTape {
 public:
  // From enter to exit the calls of this thread's layers are recorded, or (replays) run with what was recorded, from
  // the first on. Tapes may be nested, and end in any order.
  void enter(bool replays);
  void exit();

  std::shared_ptr<ops::LinearState> pass(std::shared_ptr<ops::LinearState> state);
  bool replays() const { return replays_; }

 private:
  std::vector<std::shared_ptr<ops::LinearState>> calls_;
  size_t next_ = 0;
  bool replays_ = false;
};

// The state that this call of a layer runs with: its own, or that on the tape.
std::shared_ptr<ops::LinearState> taped(std::shared_ptr<ops::LinearState> state);

// Whether this thread runs layers that run twice, for the first time or again.
bool repeats_layers();

// Whether this thread runs layers again. Their amaxes count already.
bool replays_layers();

}  // namespace plimsoll::amp
