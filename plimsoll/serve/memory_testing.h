// Memory that is lacking where a test says.
#pragma once

#include <cstdint>

namespace plimsoll::serve::testing {

// An allocation of this thread by `new`, the one after so many others, that throws std::bad_alloc.
class FailingAllocation {
 public:
  explicit FailingAllocation(int64_t before);
  ~FailingAllocation();
  FailingAllocation(const FailingAllocation&) = delete;
  FailingAllocation& operator=(const FailingAllocation&) = delete;

  static bool has_failed();  // since the last one of this thread was made
};

}  // namespace plimsoll::serve::testing
