// The processor's own word on overflow: while traps are in force on a thread, the bodies of its parallel_for run, on
// each worker, with the overflow exception unmasked, and the first instruction that overflows is noted. VCVTPS2PH and
// FP16 arithmetic raise it; BF16 conversions, FP8 codes and portable code raise nothing. MXCSR is as it was after each
// body. Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, 10.2.3 and 11.5.
#pragma once

#include <atomic>
#include <cstdint>

namespace plimsoll::runtime {

// Overflow that the traps of one thread have caught, by whichever worker.
struct OverflowLog {
  std::atomic<uintptr_t> instruction{0};  // 0: none
};

// In force on the constructing thread until destruction there. Nests: the inner one holds. A trap costs about a
// microsecond, once for each body; SIGFPE from elsewhere goes to whoever handled it before.
class OverflowTraps {
 public:
  OverflowTraps();
  ~OverflowTraps();
  OverflowTraps(const OverflowTraps&) = delete;
  OverflowTraps& operator=(const OverflowTraps&) = delete;

  // The address of the instruction that overflowed first since the last call; 0: none has.
  uintptr_t take() { return log_.instruction.exchange(0); }

 private:
  OverflowLog log_;
  OverflowLog* previous_;
};

// False: the processor has no such exception, and nothing is ever caught.
bool has_overflow_traps();

// For parallel_for: the log in force on this thread, or nullptr.
OverflowLog* overflow_log();

// For parallel_for: arms the calling thread, until destruction, for `log`; does nothing with nullptr.
class ArmOverflow {
 public:
  explicit ArmOverflow(OverflowLog* log);
  ~ArmOverflow();
  ArmOverflow(const ArmOverflow&) = delete;
  ArmOverflow& operator=(const ArmOverflow&) = delete;

 private:
  OverflowLog* log_;
  OverflowLog* previous_ = nullptr;
  uint32_t control_ = 0;
};

}  // namespace plimsoll::runtime
