#include "plimsoll/ops/norm/norm_pass.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/util/Exception.h>

#include <cmath>
#include <utility>

#include "plimsoll/kernels/norm/norm_cuda.h"
#include "plimsoll/ops/tensor/arguments.h"
#include "plimsoll/ops/tensor/device_stream.h"
#include "plimsoll/ops/tensor/dtype.h"
#include "plimsoll/ops/tensor/traffic.h"
#include "plimsoll/watch/audit.h"
#include "plimsoll/watch/profile.h"

namespace plimsoll::ops {
namespace {

bool is_layer_norm(const NormOptions& options) { return options.kind == kernels::NormKind::kLayerNorm; }

// args: what else to read and write.
Produced run(const NormPass& pass, format::Format format, const ScaleRef& scale, kernels::NormForward args) {
  // A device writes the format of x, FP32 and codes; from FP32 any other by one rounding, as if it were written at once.
  const bool is_written = pass.x.device().is_cpu() || format::is_fp8(format) || format == format::Format::kFp32 ||
                          format == format_of(pass.x.scalar_type(), "norm");
  if (!is_written) {
    Produced wide = run(pass, format::Format::kFp32, {}, args);
    return {wide.values.to(dtype_of(format)), std::move(wide.amax)};
  }
  const at::Tensor weight = as_fp32(pass.weight), bias = as_fp32(pass.bias);
  at::Tensor values = at::empty(pass.x.sizes(), pass.x.options().dtype(dtype_of(format)));
  args.kind = pass.options.kind;
  args.rows = pass.x.size(0);
  args.cols = pass.x.size(1);
  args.x = pass.x.const_data_ptr();
  args.x_format = format_of(pass.x.scalar_type(), "norm");
  args.weight = weight.const_data_ptr<float>();
  args.bias = data_or_null(bias);
  args.zero_centered = pass.options.zero_centered;
  args.epsilon = static_cast<float>(pass.options.epsilon);
  args.y = values.mutable_data_ptr();
  args.y_format = format;
  AmaxSlot amax(pass.x.device());
  args.scale = scale.data();
  args.amax = amax.data();
  const double matrices = 1 + (args.residual != nullptr) + (args.sum != nullptr);
  const watch::Span span("norm", {.bytes = matrices * traffic(pass.x) + traffic(values)});
  watch::audit_operator({.op = "norm", .input = args.x_format, .output = format});
  on_device_of(values, [&](auto... stream) { kernels::norm_forward(args, stream...); });
  return {std::move(values), std::move(amax)};
}

}  // namespace

void NormPass::exchange(SavedTensors& tensors) {
  for (at::Tensor* tensor : {&x, &weight, &bias, &mean, &rstd}) tensors.exchange(*tensor);
}

void check_norm(const NormInput& input, const NormOptions& options, const char* op) {
  check_device_values(input.x, op, "x");
  TORCH_CHECK(input.x.dim() >= 1, op, ": expected x of one dimension or more, got a scalar");
  const int64_t dim = input.x.size(-1);
  if (input.residual.defined()) {
    check_device_values(input.residual, op, "residual");
    check_same_device(input.x, input.residual, op, "residual");
    TORCH_CHECK(input.residual.sizes() == input.x.sizes() && input.residual.scalar_type() == input.x.scalar_type(), op,
                ": expected a residual ", input.x.sizes(), " of ", input.x.scalar_type(), ", got ",
                input.residual.sizes(), " of ", input.residual.scalar_type());
  }
  check_device_values(input.weight, op, "norm weight");
  check_same_device(input.x, input.weight, op, "norm weight");
  TORCH_CHECK(input.weight.dim() == 1, op, ": expected norm weight [", dim, "], got ", input.weight.sizes());
  TORCH_CHECK(input.weight.size(0) == dim, op, ": expected x [..., ", input.weight.size(0), "], got ", input.x.sizes());
  if (!input.bias.defined()) return;
  TORCH_CHECK(is_layer_norm(options), op, ": expected no norm bias with RMSNorm, got one");
  check_device_values(input.bias, op, "norm bias");
  check_same_device(input.x, input.bias, op, "norm bias");
  TORCH_CHECK(input.bias.dim() == 1 && input.bias.size(0) == dim, op, ": expected norm bias [", dim, "], got ",
              input.bias.sizes());
}

bool any_requires_grad(const NormInput& input) {
  return requires_grad(input.x) || requires_grad(input.residual) || requires_grad(input.weight) ||
         requires_grad(input.bias);
}

NormPass norm_pass(const NormInput& input, const NormOptions& options) {
  NormPass pass;
  pass.options = options;
  pass.x = as_matrix(input.x, "norm");
  pass.weight = input.weight;
  pass.bias = input.bias;
  return pass;
}

Producer norm_producer(NormPass& pass, const at::Tensor& residual) {
  return [&pass, residual](format::Format format, const ScaleRef& scale) {
    const at::Tensor added = residual.defined() ? as_matrix(residual, "norm") : residual;
    const at::Tensor sum = residual.defined() ? at::empty_like(pass.x) : residual;
    const auto statistics = pass.x.options().dtype(at::kFloat);
    if (is_layer_norm(pass.options)) pass.mean = at::empty({pass.x.size(0)}, statistics);
    pass.rstd = at::empty({pass.x.size(0)}, statistics);
    kernels::NormForward args;
    args.residual = added.defined() ? added.const_data_ptr() : nullptr;
    args.sum = sum.defined() ? sum.mutable_data_ptr() : nullptr;
    args.mean = pass.mean.defined() ? pass.mean.mutable_data_ptr<float>() : nullptr;
    args.rstd = pass.rstd.mutable_data_ptr<float>();
    Produced produced = run(pass, format, scale, args);
    if (sum.defined()) pass.x = sum;
    return produced;
  };
}

Producer norm_producer_again(const NormPass& pass) {
  return [&pass](format::Format format, const ScaleRef& scale) { return run(pass, format, scale, {}); };
}

NormGradients run_norm_backward(const NormPass& pass, const at::Tensor& grad, const at::Tensor& grad_sum,
                                at::IntArrayRef x_sizes) {
  const at::ScalarType dtype = pass.x.scalar_type();
  if (pass.x.is_cuda() && grad.scalar_type() != dtype) {  // a device has kernels of one format alone
    NormPass wide = pass;
    wide.x = pass.x.to(at::kFloat);
    NormGradients result = run_norm_backward(wide, grad.to(at::kFloat), grad_sum, x_sizes);
    result.x = result.x.to(dtype);
    return result;
  }
  const at::Tensor direct = grad_sum.defined() ? as_matrix(grad_sum.to(dtype), "norm") : grad_sum;
  const at::Tensor weight = as_fp32(pass.weight);
  const auto sums = pass.x.options().dtype(at::kFloat);
  NormGradients result{.x = at::empty(x_sizes, pass.x.options()), .weight = at::empty({pass.x.size(1)}, sums)};
  if (is_layer_norm(pass.options)) result.bias = at::empty({pass.x.size(1)}, sums);
  const watch::Span span("norm backward", {.bytes = traffic(grad, pass.x, direct, result.x)});
  watch::audit_operator(
      {.op = "norm backward", .input = format_of(grad.scalar_type(), "norm"), .output = format_of(dtype, "norm")});
  const kernels::NormBackward args{.kind = pass.options.kind,
                                   .rows = pass.x.size(0),
                                   .cols = pass.x.size(1),
                                   .dy = grad.const_data_ptr(),
                                   .dy_format = format_of(grad.scalar_type(), "norm"),
                                   .x = pass.x.const_data_ptr(),
                                   .x_format = format_of(dtype, "norm"),
                                   .weight = weight.const_data_ptr<float>(),
                                   .zero_centered = pass.options.zero_centered,
                                   .mean = is_layer_norm(pass.options) ? pass.mean.const_data_ptr<float>() : nullptr,
                                   .rstd = pass.rstd.const_data_ptr<float>(),
                                   .dresidual = direct.defined() ? direct.const_data_ptr() : nullptr,
                                   .dx = result.x.mutable_data_ptr(),
                                   .dx_format = format_of(dtype, "norm"),
                                   .dweight = result.weight.mutable_data_ptr<float>(),
                                   .dbias = result.bias.defined() ? result.bias.mutable_data_ptr<float>() : nullptr};
  if (pass.x.is_cuda()) {
    const at::Tensor partials = at::empty({kernels::norm_partial_count(args)}, sums);
    on_stream_of(pass.x, [&](const kernels::cuda::Stream& stream) {
      kernels::norm_backward({args, partials.mutable_data_ptr<float>()}, stream);
    });
  } else {
    kernels::norm_backward(args);
  }
  return result;
}

NormGradients norm_gradients(const NormPass& pass, const at::Tensor& grad, const at::Tensor& grad_sum,
                             at::IntArrayRef x_sizes) {
  if (!grad.defined()) return {.x = grad_sum};
  NormGradients result = run_norm_backward(pass, grad, grad_sum, x_sizes);
  result.weight = result.weight.to(pass.weight.scalar_type());
  result.bias = pass.bias.defined() ? result.bias.to(pass.bias.scalar_type()) : at::Tensor();
  return result;
}

}  // namespace plimsoll::ops
