// Display of a training run: on a terminal one line that is rewritten, elsewhere a line an interval.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "plimsoll/app/train/train.h"

namespace plimsoll::cli {

// Minutes and seconds, after an hour hours, too.
std::string clock_text(double seconds);

class Progress {
 public:
  // log_every: steps between lines where there is no terminal.
  Progress(std::string label, int64_t log_every);

  void step(const app::StepRecord& record);
  // A row of figures that stays.
  void row(const std::string& line) const;
  // To standard error.
  void note(const std::string& line) const;

 private:
  std::string describe(const app::StepRecord& record) const;
  double seconds_left(const app::StepRecord& record) const;

  std::string label_;
  int64_t log_every_;
  bool terminal_;
  int64_t steps_seen_ = 0;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace plimsoll::cli
