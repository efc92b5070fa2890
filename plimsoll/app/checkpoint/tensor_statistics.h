// Statistics of one tensor's values that tell which number formats can hold it.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <optional>
#include <span>

#include "plimsoll/format/format.h"

namespace plimsoll::app {

struct TensorStatistics {
  double amax = 0;  // NaN if the tensor holds any, else Inf if it holds any, else the largest magnitude
  double rms = 0;   // of the finite values
  int64_t count = 0;
  int64_t zeros = 0;
  int64_t non_finite = 0;
  bool is_floating = true;

  // log2(max_finite / amax): how many times the values could double. Nothing for an amax of 0 or one that is not
  // finite, and for integers, which no narrow format replaces.
  std::optional<double> headroom_bits(format::Format format) const;
};

// Statistics of values that come one part after another.
class StatisticsOfParts {
 public:
  void add(std::span<const double> values);
  TensorStatistics result() const;

 private:
  TensorStatistics sums_;
  double largest_ = 0, squares_ = 0;
  bool any_nan_ = false;
};

// Statistics of a tensor of any real dtype, in double.
TensorStatistics statistics_of(const at::Tensor& tensor);

}  // namespace plimsoll::app
