#include "plimsoll/autoscale/measure.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/where.h>

#include <cmath>

#include "plimsoll/kernels/gradient/gradient.h"
#include "plimsoll/ops/tensor/dtype.h"
#include "plimsoll/ops/tensor/quantize.h"

namespace plimsoll::autoscale {
namespace {

Measured measured_number(double x) {
  const double magnitude = std::fabs(x);
  if (!std::isfinite(magnitude) || magnitude == 0) return {.scale = zero_scale()};
  const bool mask = magnitude >= kMaskValue;
  return {.scale = scale_of(magnitude, magnitude), .has_masks = mask, .has_others = !mask};
}

}  // namespace

at::Tensor with_masks(const at::Tensor& data) {
  const at::Tensor masks = data.abs().gt(std::exp2(kHeadroom)).logical_and_(at::isfinite(data));
  return at::where(masks, data.sign() * std::exp2(kMaskData), data);
}

double rms_of(const at::Tensor& data) {
  const kernels::GradientTensor tensor = {
      .data = data.data_ptr(), .format = ops::format_of(data.scalar_type(), "autoscale"), .count = data.numel()};
  const kernels::GradientSummary summary = kernels::gradient_pass({.tensors = &tensor, .tensor_count = 1});
  return std::sqrt(summary.sum_of_squares / static_cast<double>(data.numel()));
}

Measured measure(const at::Tensor& x) {
  if (x.numel() == 0) return {.scale = zero_scale()};
  if (x.numel() == 1) return measured_number(x.item<double>());
  const at::Tensor values = (x.scalar_type() == at::kDouble ? x.to(at::kFloat) : x).contiguous();
  const double amax = ops::amax(values.view({1, -1}));
  if (amax < kMaskValue) return {.scale = scale_of(rms_of(values), amax), .has_others = amax > 0};
  const at::Tensor magnitudes = values.abs(), finite = at::isfinite(values);
  const at::Tensor masks = magnitudes.ge(kMaskValue).logical_and_(finite);
  Measured result = measure(at::where(finite.logical_and(masks.logical_not()), values, 0));
  result.has_masks = masks.any().item<bool>();
  if (result.has_masks && !result.has_others) {
    const double largest = at::where(masks, magnitudes, 0).max().item<double>();
    result.scale = scale_of(largest, largest);
  }
  return result;
}

RangeCounts lost_range(const at::Tensor& exact, const at::Tensor& rounded) {
  const auto count = [](const at::Tensor& which) { return which.sum().item<int64_t>(); };
  const double smallest = rounded.scalar_type() == at::kHalf ? 0x1p-14 : 0x1p-126;
  const at::Tensor held = rounded.to(at::kFloat), there = exact.ne(0);
  return {.elements = count(there),
          .overflowed = count(at::isfinite(exact).logical_and_(at::isfinite(held).logical_not())),
          .small = count(there.logical_and(held.abs().lt(smallest)))};
}

}  // namespace plimsoll::autoscale
