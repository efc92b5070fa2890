// Distance of tensors from what they should be: |got - want| / |want|, over all that were added.
#pragma once

#include <ATen/core/TensorBody.h>

namespace plimsoll::app {

class RelativeError {
 public:
  // In FP64.
  void add(const at::Tensor& got, const at::Tensor& want);
  bool empty() const { return empty_; }
  // NaN once a difference was. 0 of equal tensors, all of zeros, too.
  double value() const;

 private:
  double distance_ = 0, length_ = 0;  // squared
  bool empty_ = true;
};

}  // namespace plimsoll::app
