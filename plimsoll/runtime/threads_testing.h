// Helper of every folder's tests: a number of threads for a while.
#pragma once

#include "plimsoll/runtime/threads.h"

namespace plimsoll::runtime::testing {

class ScopedThreads {
 public:
  explicit ScopedThreads(int count) : previous_(threads()) { set_threads(count); }
  ~ScopedThreads() { set_threads(previous_); }
  ScopedThreads(const ScopedThreads&) = delete;
  ScopedThreads& operator=(const ScopedThreads&) = delete;

 private:
  int previous_;
};

}  // namespace plimsoll::runtime::testing
