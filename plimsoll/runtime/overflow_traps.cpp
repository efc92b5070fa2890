#include "plimsoll/runtime/overflow_traps.h"

#include <csignal>
#include <mutex>
#include <utility>

#include "plimsoll/runtime/signal_before.h"

#if defined(__x86_64__) && defined(__linux__)
#include <ucontext.h>
#include <xmmintrin.h>
#endif

namespace plimsoll::runtime {
namespace {

thread_local OverflowLog* in_force = nullptr;  // of the thread that opened the traps
thread_local OverflowLog* armed = nullptr;     // of the worker that runs a body

}  // namespace

#if defined(__x86_64__) && defined(__linux__)
namespace {

constexpr uint32_t kMasks = 0x1f80, kOverflowMask = 0x0400;

std::mutex handler_mutex;
int handler_users = 0;
struct sigaction handler_before = {};

// Notes where, masks the exception in the interrupted thread, and lets the instruction run again.
void on_overflow(int signal, siginfo_t* info, void* context) {
  if (armed == nullptr) return pass_to_handler_before(handler_before, signal, info, context);
  auto* interrupted = static_cast<ucontext_t*>(context);
  uintptr_t none = 0;
  armed->instruction.compare_exchange_strong(none, static_cast<uintptr_t>(interrupted->uc_mcontext.gregs[REG_RIP]));
  interrupted->uc_mcontext.fpregs->mxcsr |= kMasks;
}

void use_handler() {
  const std::lock_guard lock(handler_mutex);
  if (handler_users++ > 0) return;
  struct sigaction action = {};
  action.sa_sigaction = on_overflow;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGFPE, &action, &handler_before);
}

void release_handler() {
  const std::lock_guard lock(handler_mutex);
  if (--handler_users == 0) sigaction(SIGFPE, &handler_before, nullptr);
}

}  // namespace

bool has_overflow_traps() { return true; }

ArmOverflow::ArmOverflow(OverflowLog* log) : log_(log) {
  if (log_ == nullptr) return;
  previous_ = std::exchange(armed, log_);
  control_ = _mm_getcsr();
  _mm_setcsr(control_ & ~kOverflowMask);
}

ArmOverflow::~ArmOverflow() {
  if (log_ == nullptr) return;
  _mm_setcsr(control_);
  armed = previous_;
}
#else
namespace {
void use_handler() {}
void release_handler() {}
}  // namespace

bool has_overflow_traps() { return false; }

ArmOverflow::ArmOverflow(OverflowLog* log) : log_(log) {}
ArmOverflow::~ArmOverflow() = default;
#endif

OverflowLog* overflow_log() { return in_force; }

OverflowTraps::OverflowTraps() {
  use_handler();
  previous_ = std::exchange(in_force, &log_);
}

OverflowTraps::~OverflowTraps() {
  in_force = previous_;
  release_handler();
}

}  // namespace plimsoll::runtime
