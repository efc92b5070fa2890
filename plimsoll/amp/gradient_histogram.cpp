#include "plimsoll/amp/gradient_histogram.h"

#include <algorithm>
#include <numeric>

namespace plimsoll::amp {

int64_t GradientHistogram::total() const { return std::accumulate(counts.begin(), counts.end(), int64_t{0}); }

double GradientHistogram::share_below(int exponent) const {
  const int64_t all = total();
  if (all == 0) return 0;
  const auto end = counts.begin() + std::clamp(exponent + 127, 0, 256);
  return static_cast<double>(std::accumulate(counts.begin(), end, int64_t{0})) / static_cast<double>(all);
}

GradientHistogram& GradientHistogram::operator+=(const GradientHistogram& other) {
  for (size_t i = 0; i < counts.size(); ++i) counts[i] += other.counts[i];
  return *this;
}

}  // namespace plimsoll::amp
