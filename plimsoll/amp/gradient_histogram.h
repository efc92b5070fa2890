// Histogram of gradients: the number of their elements between each power of two and the next.
#pragma once

#include <array>
#include <cstdint>

namespace plimsoll::amp {

constexpr int kSmallestNormalFp16 = -14;  // 2^-14; smaller ones lose bits, and all of them from 2^-25 on

struct GradientHistogram {
  // [e]: elements of 2^(e - 127) <= |x| < 2^(e - 126); [0]: subnormals of fp32. Zeros and what is not finite are left
  // out: where there was nothing, nothing was lost.
  std::array<int64_t, 256> counts{};

  int64_t total() const;
  // The share of the elements that is below 2^exponent; 0 if there are none.
  double share_below(int exponent) const;
  // The share that fp16 flushes to zero or holds as subnormals, if the gradients have the loss scale on them.
  double flushed_share() const { return share_below(kSmallestNormalFp16); }
  GradientHistogram& operator+=(const GradientHistogram& other);
};

}  // namespace plimsoll::amp
