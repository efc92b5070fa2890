// One amax from several threads: the largest of the FP32 bit patterns with the sign cleared, so NaN > Inf > finite.
#pragma once

#include <atomic>
#include <bit>
#include <cstdint>

namespace plimsoll::kernels {

class SharedAmax {
 public:
  void raise(int32_t bits) {
    int32_t seen = bits_.load(std::memory_order_relaxed);
    while (seen < bits && !bits_.compare_exchange_weak(seen, bits, std::memory_order_relaxed)) {
    }
  }
  float value() const { return std::bit_cast<float>(bits_.load(std::memory_order_relaxed)); }
  // To where a kernel's caller wants it; nullptr: nowhere.
  void store(float* amax) const {
    if (amax != nullptr) *amax = value();
  }

 private:
  std::atomic<int32_t> bits_ = 0;
};

}  // namespace plimsoll::kernels
