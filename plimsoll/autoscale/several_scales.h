// Tensors of several scales: one for each row, channel or block, or one that is no power of two.
//
//   value = data * 2^exponent * scales
//
// scales: FP32, finite and larger than 0, of as many dimensions as the data, in each of their size or of a number of
// equal blocks. Without them (without_scales) it is a tensor like any other, which the rules of operators are for.
#pragma once

#include <ATen/core/TensorBody.h>

#include <memory>

#include "plimsoll/autoscale/session.h"

namespace plimsoll::autoscale {

// data * scale. scale: a number, or a tensor whose sizes divide the data's, counted from the last dimension. Exact but
// for the rounding of data to the session's format; an error where that does not hold them.
at::Tensor scaled_array(const at::Tensor& data, const at::Tensor& scale, const std::shared_ptr<Session>& session);
// x, plain or scaled, with this scale.
at::Tensor as_scaled(const at::Tensor& x, const at::Tensor& scale, const std::shared_ptr<Session>& session);
// The same value with this scale, and with data / factor and scale * factor.
at::Tensor set_scale(const at::Tensor& x, const at::Tensor& scale);
at::Tensor rebalance(const at::Tensor& x, const at::Tensor& factor);
// FP64 without dimensions where it is one power of two, 0 of an exact zero; else FP32.
at::Tensor scale_of(const at::Tensor& x);

bool has_scales(const at::Tensor& x);
// Whether any tensor ever had them: what nobody uses costs operators nothing.
bool any_has_scales();
// The same data and exponent; scales: undefined for none.
at::Tensor with_scales(const at::Tensor& x, const at::Tensor& scales);
at::Tensor without_scales(const at::Tensor& x);
// A number for each element, or one for all elements along a dimension.
at::Tensor spread(const at::Tensor& scales, at::IntArrayRef sizes);
// Whether each dimension is of one size, or of one number in either.
bool can_broadcast(const at::Tensor& a, const at::Tensor& b);

}  // namespace plimsoll::autoscale
