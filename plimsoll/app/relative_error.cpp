#include "plimsoll/app/relative_error.h"

#include <cmath>

namespace plimsoll::app {

void RelativeError::add(const at::Tensor& got, const at::Tensor& want) {
  const at::Tensor exact = want.to(at::kDouble);
  distance_ += (got.to(at::kDouble) - exact).square().sum().item<double>();
  length_ += exact.square().sum().item<double>();
  empty_ = false;
}

double RelativeError::value() const { return distance_ == 0 ? 0 : std::sqrt(distance_ / length_); }

}  // namespace plimsoll::app
