#include "plimsoll/app/checkpoint/tensor_statistics.h"

#include <algorithm>
#include <cmath>

namespace plimsoll::app {

std::optional<double> TensorStatistics::headroom_bits(format::Format format) const {
  if (!is_floating || !(amax > 0) || std::isinf(amax)) return std::nullopt;
  return std::log2(static_cast<double>(format::max_finite(format)) / amax);
}

void StatisticsOfParts::add(std::span<const double> values) {
  double largest = largest_, squares = squares_;
  bool any_nan = false;
  int64_t zeros = 0, non_finite = 0;
  for (const double value : values) {
    const double magnitude = std::fabs(value);
    any_nan |= std::isnan(magnitude);
    largest = std::max(largest, magnitude);
    if (std::isfinite(magnitude)) {
      squares += magnitude * magnitude;
    } else {
      ++non_finite;
    }
    zeros += magnitude == 0;
  }
  largest_ = largest;
  squares_ = squares;
  any_nan_ |= any_nan;
  sums_.count += static_cast<int64_t>(values.size());
  sums_.zeros += zeros;
  sums_.non_finite += non_finite;
}

TensorStatistics StatisticsOfParts::result() const {
  TensorStatistics result = sums_;
  result.amax = any_nan_ ? std::nan("") : largest_;
  const int64_t finite = result.count - result.non_finite;
  result.rms = finite > 0 ? std::sqrt(squares_ / static_cast<double>(finite)) : 0;
  return result;
}

TensorStatistics statistics_of(const at::Tensor& tensor) {
  constexpr int64_t kChunk =
      int64_t{1} << 20;  // elements converted at a time, so that a large file needs little memory
  const at::Tensor flat = tensor.contiguous().view(-1);
  StatisticsOfParts parts;
  for (int64_t begin = 0; begin < flat.numel(); begin += kChunk) {
    const at::Tensor chunk = flat.slice(0, begin, std::min(begin + kChunk, flat.numel())).to(at::kDouble);
    parts.add({chunk.const_data_ptr<double>(), static_cast<size_t>(chunk.numel())});
  }
  TensorStatistics result = parts.result();
  result.is_floating = at::isFloatingType(tensor.scalar_type());
  return result;
}

}  // namespace plimsoll::app
