#include "plimsoll/app/checkpoint/tensor_statistics.h"

#include <algorithm>
#include <cmath>

namespace plimsoll::app {

std::optional<double> TensorStatistics::headroom_bits(format::Format format) const {
  if (!is_floating || !(amax > 0) || std::isinf(amax)) return std::nullopt;
  return std::log2(static_cast<double>(format::max_finite(format)) / amax);
}

TensorStatistics statistics_of(const at::Tensor& tensor) {
  constexpr int64_t kChunk =
      int64_t{1} << 20;  // elements converted at a time, so that a large file needs little memory
  const at::Tensor flat = tensor.contiguous().view(-1);
  TensorStatistics result{.count = flat.numel(), .is_floating = at::isFloatingType(tensor.scalar_type())};
  double largest = 0, sum = 0;
  bool any_nan = false;
  for (int64_t begin = 0; begin < result.count; begin += kChunk) {
    const at::Tensor chunk = flat.slice(0, begin, std::min(begin + kChunk, result.count)).to(at::kDouble);
    const auto* values = chunk.const_data_ptr<double>();
    for (int64_t i = 0; i < chunk.numel(); ++i) {
      const double magnitude = std::fabs(values[i]);
      any_nan |= std::isnan(magnitude);
      largest = std::max(largest, magnitude);
      if (std::isfinite(magnitude)) {
        sum += magnitude * magnitude;
      } else {
        ++result.non_finite;
      }
      result.zeros += magnitude == 0;
    }
  }
  result.amax = any_nan ? std::nan("") : largest;
  const int64_t finite = result.count - result.non_finite;
  result.rms = finite > 0 ? std::sqrt(sum / static_cast<double>(finite)) : 0;
  return result;
}

}  // namespace plimsoll::app
