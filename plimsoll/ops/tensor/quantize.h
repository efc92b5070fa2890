// From a matrix to what a product reads, in one pass, for every recipe.
#pragma once

#include <ATen/core/TensorBody.h>

#include <optional>

#include "plimsoll/ops/tensor/scaled_tensor.h"
#include "plimsoll/recipe/operand.h"

namespace plimsoll::ops {

struct QuantizeOptions {
  format::Format format = format::Format::kE4m3;
  recipe::Granularity granularity = recipe::kPerTensor;  // of x as it is stored
  format::Format scale_format = format::Format::kFp32;
  bool power_of_two = false;
  format::ScaleRounding rounding = format::ScaleRounding::kUp;
  // Per tensor: the scale to use. Absent: from the tensor's (row's, block's) own amax.
  std::optional<float> scale = {};
};

struct Quantized {
  ScaledTensor tensor;
  float amax = 0;       // of x: NaN > Inf > finite
  float inv_scale = 1;  // of the largest block
};

// x [rows, cols] of fp32, bf16 or fp16, any strides. column_sum, if not nullptr, becomes the fp32 [cols] sum of x over
// the rows.
Quantized quantize(const at::Tensor& x, const QuantizeOptions& options, at::Tensor* column_sum = nullptr);

// What quantize() gives a tensor with this amax, under options with one scale for the whole of it.
float tensor_scale(const QuantizeOptions& options, float amax);

// Codes that another kernel wrote, with their scale.
ScaledTensor scaled_codes(at::Tensor codes, format::Format format, float scale);

float amax(const at::Tensor& x);
// fp32 [cols].
at::Tensor column_sum(const at::Tensor& x);

}  // namespace plimsoll::ops
