// Split of a text's windows into those to train on and those held out for validation: every 20th group of up to 32
// neighbours is held out, so both halves see every part of the text.
#pragma once

#include <algorithm>
#include <cstdint>

namespace plimsoll::io {

class WindowSplit {
 public:
  // windows >= 2; both parts then hold at least one window.
  explicit constexpr WindowSplit(int64_t windows)
      : period_(std::min(kPeriod, windows)),
        group_(std::clamp<int64_t>(windows / kPeriod, 1, kMaxGroup)),
        windows_(windows) {}

  constexpr int64_t validation_count() const { return windows_ - training_count(); }
  constexpr int64_t training_count() const {
    return windows_ / cycle() * trained() + std::min(windows_ % cycle(), trained());
  }

  // The window with the given index among those of its part.
  constexpr int64_t training(int64_t index) const { return index / trained() * cycle() + index % trained(); }
  constexpr int64_t validation(int64_t index) const { return index / group_ * cycle() + trained() + index % group_; }

 private:
  static constexpr int64_t kPeriod = 20;
  static constexpr int64_t kMaxGroup = 32;

  constexpr int64_t cycle() const { return period_ * group_; }
  constexpr int64_t trained() const { return (period_ - 1) * group_; }  // of each cycle

  int64_t period_;
  int64_t group_;
  int64_t windows_;
};

}  // namespace plimsoll::io
