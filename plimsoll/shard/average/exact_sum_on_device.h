// ExactSumOfSquares of values on a device, by torch's operators: integers, so that no order of theirs matters either.
#pragma once

#include <ATen/core/TensorBody.h>

namespace plimsoll::shard {

// words int64 [numel of ExactSumOfSquares::Words], on the device of values fp32: what add(values) adds to words().
void add_squares(const at::Tensor& words, const at::Tensor& values);

}  // namespace plimsoll::shard
