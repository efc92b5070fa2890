// The activation kernels on tensors, in any format.
#pragma once

#include <ATen/core/TensorBody.h>

#include "plimsoll/kernels/activation/activation.h"
#include "plimsoll/ops/tensor/producer.h"

namespace plimsoll::ops {

// x [rows, cols]; gated: [rows, 2 cols].
Produced activate(const kernels::ActivationSpec& activation, const at::Tensor& x, format::Format format,
                  const ScaleRef& scale);

// activate() on x, which must outlive it.
Producer activation_producer(const kernels::ActivationSpec& activation, const at::Tensor& x);

struct ActivationGrad {
  const kernels::ActivationSpec& activation;
  const at::Tensor& x;
  const at::Tensor& grad;  // of the result
};
// In the shape of x. column_sum, if not nullptr, becomes the fp32 sum of the gradient over the rows.
Produced activation_gradient(const ActivationGrad& args, format::Format format, const ScaleRef& scale,
                             at::Tensor* column_sum = nullptr);

}  // namespace plimsoll::ops
