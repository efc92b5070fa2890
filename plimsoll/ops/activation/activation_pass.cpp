#include "plimsoll/ops/activation/activation_pass.h"

#include <ATen/ops/empty.h>

#include "plimsoll/ops/tensor/dtype.h"
#include "plimsoll/ops/tensor/traffic.h"
#include "plimsoll/watch/profile.h"

namespace plimsoll::ops {

Produced activate(kernels::Activation kind, const at::Tensor& x, format::Format format, float inv_scale) {
  const int64_t cols = kernels::is_gated(kind) ? x.size(1) / 2 : x.size(1);
  at::Tensor y = at::empty({x.size(0), cols}, x.options().dtype(dtype_of(format)));
  const watch::Span span("activation", {.bytes = traffic(x, y)});
  const float amax = kernels::activation_forward({.kind = kind,
                                                  .rows = x.size(0),
                                                  .cols = cols,
                                                  .x = x.const_data_ptr(),
                                                  .x_format = format_of(x.scalar_type(), "activation"),
                                                  .y = y.mutable_data_ptr(),
                                                  .y_format = format,
                                                  .inv_scale = inv_scale});
  return {std::move(y), amax};
}

Producer activation_producer(kernels::Activation kind, const at::Tensor& x) {
  return [kind, &x](format::Format format, float inv_scale) { return activate(kind, x, format, inv_scale); };
}

Produced activation_gradient(const ActivationGrad& args, format::Format format, float inv_scale,
                             at::Tensor* column_sum) {
  const at::Tensor& x = args.x;
  if (column_sum != nullptr) *column_sum = at::empty({x.size(1)}, x.options().dtype(at::kFloat));
  at::Tensor dx = at::empty(x.sizes(), x.options().dtype(dtype_of(format)));
  const watch::Span span("activation backward", {.bytes = traffic(x, args.grad, dx)});
  const float amax = kernels::activation_backward(
      {.kind = args.kind,
       .rows = args.grad.size(0),
       .cols = args.grad.size(1),
       .x = x.const_data_ptr(),
       .x_format = format_of(x.scalar_type(), "activation"),
       .dy = args.grad.const_data_ptr(),
       .dy_format = format_of(args.grad.scalar_type(), "activation"),
       .dx = dx.mutable_data_ptr(),
       .dx_format = format,
       .inv_scale = inv_scale,
       .column_sum = column_sum == nullptr ? nullptr : column_sum->mutable_data_ptr<float>()});
  return {std::move(dx), amax};
}

}  // namespace plimsoll::ops
