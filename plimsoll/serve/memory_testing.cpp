#include "plimsoll/serve/memory_testing.h"

#include <cstdlib>
#include <new>

namespace plimsoll::serve::testing {
namespace {

constexpr int64_t kNever = -1, kFailed = -2;

thread_local int64_t allocations_left = kNever;  // before the one that fails

bool fails_now() {
  if (allocations_left < 0) return false;
  if (allocations_left == 0) {
    allocations_left = kFailed;
    return true;
  }
  --allocations_left;
  return false;
}

}  // namespace

FailingAllocation::FailingAllocation(int64_t before) { allocations_left = before; }

FailingAllocation::~FailingAllocation() {
  if (allocations_left != kFailed) allocations_left = kNever;
}

bool FailingAllocation::has_failed() { return allocations_left == kFailed; }

static void* allocate(std::size_t size) {
  void* const memory = fails_now() ? nullptr : std::malloc(size == 0 ? 1 : size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace plimsoll::serve::testing

// In place of the library's, for all of the program. Not inline, or the compiler would take free() for a mistake.
[[gnu::noinline]] void* operator new(std::size_t size) { return plimsoll::serve::testing::allocate(size); }
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
