#include "plimsoll/ops/activation/activation_pass.h"

#include <ATen/ops/empty.h>

#include "plimsoll/kernels/activation/activation_cuda.h"
#include "plimsoll/ops/tensor/device_stream.h"
#include "plimsoll/ops/tensor/dtype.h"
#include "plimsoll/ops/tensor/traffic.h"
#include "plimsoll/watch/audit.h"
#include "plimsoll/watch/profile.h"

namespace plimsoll::ops {
namespace {

// Whether a device writes the format from numbers of x's; from FP32 any other follows by one rounding, as if it were written at once.
bool is_written(const at::Tensor& x, format::Format format) {
  return x.device().is_cpu() || format::is_fp8(format) || format == format_of(x.scalar_type(), "activation");
}

Produced rounded(const Produced& wide, format::Format format) { return {wide.values.to(dtype_of(format)), wide.amax}; }

}  // namespace

Produced activate(const kernels::ActivationSpec& activation, const at::Tensor& x, format::Format format,
                  const ScaleRef& scale) {
  if (!is_written(x, format) && format != format::Format::kFp32) {
    return rounded(activate(activation, x, format::Format::kFp32, {}), format);
  }
  const int64_t cols = kernels::is_gated(activation.kind) ? x.size(1) / 2 : x.size(1);
  at::Tensor y = at::empty({x.size(0), cols}, x.options().dtype(dtype_of(format)));
  AmaxSlot amax(x.device());
  const watch::Span span("activation", {.bytes = traffic(x, y)});
  watch::audit_operator({.op = "activation", .input = format_of(x.scalar_type(), "activation"), .output = format});
  const kernels::ActivationForward args{.activation = activation,
                                        .rows = x.size(0),
                                        .cols = cols,
                                        .x = x.const_data_ptr(),
                                        .x_format = format_of(x.scalar_type(), "activation"),
                                        .y = y.mutable_data_ptr(),
                                        .y_format = format,
                                        .scale = scale.data(),
                                        .amax = amax.data()};
  on_device_of(x, [&](auto... stream) { kernels::activation_forward(args, stream...); });
  return {std::move(y), std::move(amax)};
}

Producer activation_producer(const kernels::ActivationSpec& activation, const at::Tensor& x) {
  return
      [activation, &x](format::Format format, const ScaleRef& scale) { return activate(activation, x, format, scale); };
}

Produced activation_gradient(const ActivationGrad& args, format::Format format, const ScaleRef& scale,
                             at::Tensor* column_sum) {
  const at::Tensor& x = args.x;
  if (!is_written(x, format) || (x.is_cuda() && x.scalar_type() != args.grad.scalar_type())) {
    const bool is_wide = x.scalar_type() == at::kFloat && args.grad.scalar_type() == at::kFloat;
    const at::Tensor wide_x = x.to(at::kFloat), wide_grad = args.grad.to(at::kFloat);
    const ActivationGrad wide = {args.activation, wide_x, wide_grad};
    if (!is_wide && (format::is_fp8(format) || format == format::Format::kFp32)) {
      return activation_gradient(wide, format, scale, column_sum);
    }
    return rounded(activation_gradient(wide, format::Format::kFp32, {}, column_sum), format);
  }
  if (column_sum != nullptr) *column_sum = at::empty({x.size(1)}, x.options().dtype(at::kFloat));
  at::Tensor dx = at::empty(x.sizes(), x.options().dtype(dtype_of(format)));
  AmaxSlot amax(x.device());
  const watch::Span span("activation backward", {.bytes = traffic(x, args.grad, dx)});
  watch::audit_operator(
      {.op = "activation backward", .input = format_of(args.grad.scalar_type(), "activation"), .output = format});
  const kernels::ActivationBackward pass{
      .activation = args.activation,
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
      .column_sum = column_sum == nullptr ? nullptr : column_sum->mutable_data_ptr<float>()};
  if (x.is_cuda()) {
    const at::Tensor partials = at::empty({kernels::activation_partial_count(pass)}, x.options().dtype(at::kFloat));
    on_stream_of(x, [&](const kernels::cuda::Stream& stream) {
      kernels::activation_backward(pass, partials.mutable_data_ptr<float>(), stream);
    });
  } else {
    kernels::activation_backward(pass);
  }
  return {std::move(dx), std::move(amax)};
}

}  // namespace plimsoll::ops
