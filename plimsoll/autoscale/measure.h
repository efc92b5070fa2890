// Looking at data: how large they are, and what rounding makes of them.
#pragma once

#include <ATen/core/TensorBody.h>

#include "plimsoll/autoscale/scale.h"
#include "plimsoll/autoscale/session.h"

namespace plimsoll::autoscale {

struct Measured {
  Scale scale;
  bool has_masks = false, has_others = false;  // among the finite values that are not zero
};

// One read for the rms and one for the largest element. Inf and NaN, which are the same under any scale, do not count,
// nor do masks, unless there is nothing else.
Measured measure(const at::Tensor& x);

// The root of the mean square of data in a dense memory, all finite.
double rms_of(const at::Tensor& data);

// The data with masks, which are larger than any other data, at what they are under every scale. data: fp32.
at::Tensor with_masks(const at::Tensor& data);

// Counts of the elements of exact, fp32, that rounding lost.
RangeCounts lost_range(const at::Tensor& exact, const at::Tensor& rounded);

}  // namespace plimsoll::autoscale
