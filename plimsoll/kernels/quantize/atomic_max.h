// Running maximum shared by threads. The order of updates does not change the result.
#pragma once

#include <atomic>
#include <cstdint>

namespace plimsoll::kernels {

// Atomic: std::atomic<int32_t> or std::atomic_ref<int32_t>.
template <class Atomic>
void raise_to(Atomic&& maximum, int32_t value) {
  int32_t seen = maximum.load(std::memory_order_relaxed);
  while (seen < value && !maximum.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
  }
}

}  // namespace plimsoll::kernels
