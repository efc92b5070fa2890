// From a matrix to what a product reads, in one pass, for every recipe.
#pragma once

#include <ATen/core/TensorBody.h>

#include "plimsoll/ops/tensor/scale_ref.h"
#include "plimsoll/ops/tensor/scaled_tensor.h"
#include "plimsoll/recipe/operand.h"

namespace plimsoll::kernels {
struct QuantizeStatistic;
}

namespace plimsoll::ops {

struct QuantizeOptions {
  format::Format format = format::Format::kE4m3;
  recipe::Granularity granularity = recipe::kPerTensor;  // of x as it is stored
  format::Format scale_format = format::Format::kFp32;
  bool power_of_two = false;
  format::ScaleRounding rounding = format::ScaleRounding::kUp;
  // Per tensor: the scale to use. Undefined: from the tensor's (row's, block's) own amax.
  ScaleRef scale = {};
  bool measures = false;  // what the codes lose
};

// Options of an operand with blocks as they lie in the stored tensor; the scale is read where it has one for the whole.
QuantizeOptions quantize_options(const recipe::OperandRecipe& stored, const ScaleRef& scale);

// x, or a copy of it where elements of a row, or rows, overlap or lie apart. A matrix, else an error.
at::Tensor with_dense_rows(const at::Tensor& x);

// Memory for a kernels::QuantizeStatistic beside x: fp32 [5].
at::Tensor statistic_memory(const at::Tensor& x);
kernels::QuantizeStatistic* as_statistic(const at::Tensor& memory);

struct Quantized {
  ScaledTensor tensor;
  AmaxSlot amax;              // of x
  at::Tensor statistic = {};  // fp32 [5], a kernels::QuantizeStatistic, where the options ask for it
};

// x [rows, cols] of fp32, bf16 or fp16, any strides. column_sum, if not nullptr, becomes the fp32 [cols] sum of x over
// the rows.
Quantized quantize(const at::Tensor& x, const QuantizeOptions& options, at::Tensor* column_sum = nullptr);

// The scale that quantize() gives a tensor with this amax, under options with one scale for the whole of it;
// found where the amax is.
ScaleRef tensor_scale(const QuantizeOptions& options, const AmaxSlot& amax);

// Codes that another kernel wrote, with their scale, whose memory they share.
ScaledTensor scaled_codes(at::Tensor codes, format::Format format, const ScaleRef& scale);

AmaxSlot find_amax(const at::Tensor& x);
void find_amax(const at::Tensor& x, const AmaxSlot& amax);
// The same, read on the host.
float amax(const at::Tensor& x);
// fp32 [cols].
at::Tensor column_sum(const at::Tensor& x);

}  // namespace plimsoll::ops
