// Between values and (data, scale): the only places where a value is rounded, and where data are looked at.
#pragma once

#include <ATen/core/TensorBody.h>

#include <memory>

#include "plimsoll/autoscale/scaled_tensor_impl.h"

namespace plimsoll::autoscale {

// Whether one pass over the memory of both is one over their elements.
bool lie_alike(const at::Tensor& a, const at::Tensor& b);

// data * 2^exponent in `dtype`, exactly wherever that is normal. A tensor of its own, unless it is the same.
at::Tensor times_power(const at::Tensor& data, int32_t exponent, at::ScalarType dtype);

// The value in FP32 (FP64 where that is the logical dtype); a plain tensor is its own.
at::Tensor value_of(const at::Tensor& tensor);

// Result that an operator's kernel has written: value = data * 2^exponent.
struct Raw {
  at::Tensor data;
  int32_t exponent = 0;
};
struct Encoded {
  at::Tensor data;
  Scale scale;
};
struct Target {
  at::ScalarType dtype = at::kHalf;
  const Scale* expected = nullptr;  // the scale of raw.data that the rule foresees, of which the exponent is raw's
  Rounding rounding = Rounding::kNearest;
  Origin origin = Origin::kResult;
};
// At the exponent that the session's policy gives it. Where the data are measured, masks do not count: finite values of
// 2^120 or more, such as FP32's lowest number, which attention masks hold instead of -Inf. These saturate, unless there
// is nothing else.
Encoded encode(const Raw& raw, Session& session, const Target& target);

// x, or its values in FP32 where no pass over data reads its dtype: integers, or 8 bits.
at::Tensor measurable(const at::Tensor& x);

// A plain tensor, or a constant, as it enters. One of masks alone is that much of a mask, too.
Encoded encode_plain(const at::Tensor& x, Session& session, at::ScalarType dtype);

// log2 of the largest data of `dtype`, and whether it holds all data of this bound.
double largest_bound(at::ScalarType dtype);
// log2 of the smallest normal number of `dtype`.
double smallest_normal(at::ScalarType dtype);
bool fits(double bound, at::ScalarType dtype);

// x, floating point, as it enters. A tensor without dimensions stays in FP32.
at::Tensor as_scaled(const at::Tensor& x, const std::shared_ptr<Session>& session);

// Gives a tensor data in FP32, where no other tensor has its memory and it is no parameter. False, and nothing is done,
// where that is not so.
bool widen_alone(const at::Tensor& tensor);

// The part of SharedScale::remainder that belongs to a tensor's data; undefined where there is none.
at::Tensor remainder_of(const ScaledTensorImpl& x);

// The data of a tensor that is about to be written, with the remainder that belongs to them, times 2^exponent.
at::Tensor data_to_write(const ScaledTensorImpl& target, int32_t exponent = 0);

// With its remainder the value in FP32.
at::Tensor value_to_write(const ScaledTensorImpl& target);

// Whether what rounding cuts off is kept.
bool keeps_remainder(const at::Tensor& target);

// Writes a value into a scaled tensor. One that is alone in its memory takes the scale over; in a view of a larger one
// the exponent only rises, and then the whole is rescaled.
void assign(const at::Tensor& target, const Raw& value, const Scale* expected = nullptr);

// The value of another scaled tensor of one scale. Where format and sizes are those of the target, and it may have that
// scale, data and remainder move as they are: of a sum halfway between two data, rounding would keep either.
void assign_scaled(const at::Tensor& target, const at::Tensor& source);

// The same value with another exponent, all views of its memory along.
void set_exponent(SharedScale& shared, int32_t exponent);

at::ScalarType storage_dtype(const Session& session, int64_t dimensions, bool wide);

}  // namespace plimsoll::autoscale
