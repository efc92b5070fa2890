#include "plimsoll/ops/activation/activation_pass.h"

#include <ATen/ops/empty.h>

#include "plimsoll/ops/tensor/dtype.h"
#include "plimsoll/ops/tensor/traffic.h"
#include "plimsoll/watch/audit.h"
#include "plimsoll/watch/profile.h"

namespace plimsoll::ops {

Produced activate(const kernels::ActivationSpec& activation, const at::Tensor& x, format::Format format,
                  const ScaleRef& scale) {
  const int64_t cols = kernels::is_gated(activation.kind) ? x.size(1) / 2 : x.size(1);
  at::Tensor y = at::empty({x.size(0), cols}, x.options().dtype(dtype_of(format)));
  AmaxSlot amax(x.device());
  const watch::Span span("activation", {.bytes = traffic(x, y)});
  watch::audit_operator({.op = "activation", .input = format_of(x.scalar_type(), "activation"), .output = format});
  kernels::activation_forward({.activation = activation,
                               .rows = x.size(0),
                               .cols = cols,
                               .x = x.const_data_ptr(),
                               .x_format = format_of(x.scalar_type(), "activation"),
                               .y = y.mutable_data_ptr(),
                               .y_format = format,
                               .scale = scale.data(),
                               .amax = amax.data()});
  return {std::move(y), std::move(amax)};
}

Producer activation_producer(const kernels::ActivationSpec& activation, const at::Tensor& x) {
  return
      [activation, &x](format::Format format, const ScaleRef& scale) { return activate(activation, x, format, scale); };
}

Produced activation_gradient(const ActivationGrad& args, format::Format format, const ScaleRef& scale,
                             at::Tensor* column_sum) {
  const at::Tensor& x = args.x;
  if (column_sum != nullptr) *column_sum = at::empty({x.size(1)}, x.options().dtype(at::kFloat));
  at::Tensor dx = at::empty(x.sizes(), x.options().dtype(dtype_of(format)));
  AmaxSlot amax(x.device());
  const watch::Span span("activation backward", {.bytes = traffic(x, args.grad, dx)});
  watch::audit_operator(
      {.op = "activation backward", .input = format_of(args.grad.scalar_type(), "activation"), .output = format});
  kernels::activation_backward({.activation = args.activation,
                                .rows = args.grad.size(0),
                                .cols = args.grad.size(1),
                                .x = x.const_data_ptr(),
                                .x_format = format_of(x.scalar_type(), "activation"),
                                .dy = args.grad.const_data_ptr(),
                                .dy_format = format_of(args.grad.scalar_type(), "activation"),
                                .dx = dx.mutable_data_ptr(),
                                .dx_format = format,
                                .scale = scale.data(),
                                .amax = amax.data(),
                                .column_sum = column_sum == nullptr ? nullptr : column_sum->mutable_data_ptr<float>()});
  return {std::move(dx), std::move(amax)};
}

}  // namespace plimsoll::ops
