// A stretch of code that runs twice, the second time in backward and with the bits of the first: the Fp8Autocast scope,
// the precision table and the scales are those of the first run, and no scaling state changes. Random numbers and
// torch's own autocast are left to the caller.
//
//   amp::RunState state;                            // of this thread, now
//   { const amp::FirstRun first(state); ... }
//   { const amp::SecondRun second(state); ... }     // any time, as often as need be
#pragma once

#include <memory>

#include "plimsoll/amp/fp8_autocast.h"
#include "plimsoll/amp/precision_kernels.h"
#include "plimsoll/amp/scale_tape.h"

namespace plimsoll::amp {

struct RunState {
  Fp8Scope scope = current_scope();
  bool table_holds = precision_table_holds();
  std::shared_ptr<ScaleTape> tape = std::make_shared<ScaleTape>();
};

class FirstRun {
 public:
  explicit FirstRun(const RunState& state) : tape_(state.tape) { tape_->enter(/*replays=*/false); }
  ~FirstRun() { tape_->exit(); }
  FirstRun(const FirstRun&) = delete;
  FirstRun& operator=(const FirstRun&) = delete;

 private:
  std::shared_ptr<ScaleTape> tape_;
};

class SecondRun {
 public:
  explicit SecondRun(const RunState& state) : tape_(state.tape), table_(state.table_holds), scope_(state.scope) {
    tape_->enter(/*replays=*/true);
  }
  ~SecondRun() noexcept {
    tape_->exit();
    scope_.abandon();
  }
  SecondRun(const SecondRun&) = delete;
  SecondRun& operator=(const SecondRun&) = delete;

 private:
  std::shared_ptr<ScaleTape> tape_;
  PrecisionTableGuard table_;
  Fp8Autocast scope_;
};

}  // namespace plimsoll::amp
