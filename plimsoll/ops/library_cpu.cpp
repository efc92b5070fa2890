#include "plimsoll/ops/library_cpu.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>

#include "plimsoll/kernels/softmax/softmax.h"
#include "plimsoll/kernels/transpose/transpose.h"
#include "plimsoll/ops/activation.h"
#include "plimsoll/ops/activation_pass.h"
#include "plimsoll/ops/causal.h"
#include "plimsoll/ops/dtype.h"
#include "plimsoll/ops/gemm.h"
#include "plimsoll/ops/linear_pass.h"
#include "plimsoll/ops/norm_pass.h"
#include "plimsoll/ops/quantize.h"
#include "plimsoll/ops/traffic.h"
#include "plimsoll/watch/profile.h"

namespace plimsoll::ops {
namespace {

using recipe::GemmKind;

// A block beyond the matrix is one block.
recipe::Granularity granularity(at::IntArrayRef block, int64_t rows, int64_t cols, const char* op) {
  check_block(block, op);
  return {std::min(block[0], std::max<int64_t>(rows, 1)), std::min(block[1], std::max<int64_t>(cols, 1))};
}

format::Format scale_format_of(const at::Tensor& scale, const char* op) {
  TORCH_CHECK(scale.scalar_type() == at::kFloat || scale.scalar_type() == at::kByte, op,
              ": expected a scale of float32 or uint8 (E8M0), got ", scale.scalar_type());
  return scale.scalar_type() == at::kByte ? format::Format::kE8m0 : format::Format::kFp32;
}

ScaledTensor scaled_tensor(const at::Tensor& codes, const at::Tensor& scale, std::string_view format,
                           at::IntArrayRef block, const char* op) {
  const format::Format parsed = parse_format(format, op);
  TORCH_CHECK(codes.dim() == 2 && codes.scalar_type() == at::kByte && format::is_fp8(parsed), op,
              ": expected a matrix of uint8 codes of e4m3 or e5m2, got ", codes.sizes(), " of ", codes.scalar_type(),
              " as ", format);
  ScaledTensor tensor{.data = codes.contiguous(),
                      .scale = scale.contiguous(),
                      .format = parsed,
                      .granularity = granularity(block, codes.size(0), codes.size(1), op),
                      .scale_format = scale_format_of(scale, op)};
  const auto shape = scale_shape(tensor.granularity, codes.size(0), codes.size(1));
  TORCH_CHECK(scale.numel() == shape[0] * shape[1], op, ": expected a scale of ", shape[0], " x ", shape[1], ", got ",
              scale.sizes());
  return tensor;
}

void check_sizes(const at::Tensor& tensor, at::IntArrayRef sizes, const char* op, const char* name) {
  TORCH_CHECK(tensor.sizes() == sizes, op, ": expected ", name, " ", sizes, ", got ", tensor.sizes());
}

at::Tensor scalar(float value) { return at::scalar_tensor(value, at::kFloat); }

std::tuple<at::Tensor, at::Tensor> quantize_cpu(const at::Tensor& x, const at::Tensor& scale, std::string_view format) {
  check_values(x, "quantize", "x");
  TORCH_CHECK(scale.numel() == 1 && scale.scalar_type() == at::kFloat, "quantize: expected one float32 scale, got ",
              scale.sizes(), " of ", scale.scalar_type());
  const Quantized result =
      quantize(as_matrix(x, "quantize"), {.format = parse_format(format, "quantize"), .scale = scale.item<float>()});
  return {result.tensor.data.view(x.sizes()), scalar(result.amax)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> quantize_blocks_cpu(const at::Tensor& x, std::string_view format,
                                                                   at::IntArrayRef block, std::string_view scale_format,
                                                                   bool power_of_two, std::string_view rounding) {
  check_values(x, "quantize_blocks", "x");
  TORCH_CHECK(scale_format == "fp32" || scale_format == "e8m0",
              "quantize_blocks: expected scale_format fp32 or e8m0, got '", scale_format, "'");
  TORCH_CHECK(rounding == "up" || rounding == "down", "quantize_blocks: expected rounding up or down, got '", rounding,
              "'");
  const at::Tensor matrix = as_matrix(x, "quantize_blocks");
  const Quantized result =
      quantize(matrix, {.format = parse_format(format, "quantize_blocks"),
                        .granularity = granularity(block, matrix.size(0), matrix.size(1), "quantize_blocks"),
                        .scale_format = scale_format == "e8m0" ? format::Format::kE8m0 : format::Format::kFp32,
                        .power_of_two = power_of_two,
                        .rounding = rounding == "up" ? format::ScaleRounding::kUp : format::ScaleRounding::kDown});
  return {result.tensor.data.view(x.sizes()), result.tensor.scale, scalar(result.amax)};
}

at::Tensor dequantize_cpu(const at::Tensor& codes, const at::Tensor& scale, std::string_view format,
                          at::IntArrayRef block, at::ScalarType dtype) {
  return dequantize(scaled_tensor(codes, scale, format, block, "dequantize"), dtype);
}

at::Tensor amax_cpu(const at::Tensor& x) {
  check_values(x, "amax", "x");
  return scalar(ops::amax(as_matrix(x, "amax")));
}

at::Tensor column_sum_cpu(const at::Tensor& x) {
  check_values(x, "column_sum", "x");
  return column_sum(as_matrix(x, "column_sum"));
}

at::Tensor transpose_cpu(const at::Tensor& x) {
  TORCH_CHECK(x.dim() == 2, "transpose: expected a matrix, got ", x.sizes());
  const int64_t bytes = static_cast<int64_t>(x.element_size());
  TORCH_CHECK(bytes == 1 || bytes == 2 || bytes == 4, "transpose: expected elements of 1, 2 or 4 bytes, got ", bytes);
  const at::Tensor dense = x.contiguous();
  at::Tensor output = at::empty({x.size(1), x.size(0)}, x.options());
  const watch::Span span("transpose", {.bytes = traffic(dense, output)});
  kernels::transpose({.x = dense.const_data_ptr(),
                      .element_bytes = bytes,
                      .rows = x.size(0),
                      .cols = x.size(1),
                      .x_stride = x.size(1),
                      .output = output.mutable_data_ptr(),
                      .output_stride = x.size(0)});
  return output;
}

GemmKind parse_kind(std::string_view kind) {
  if (kind == "output") return GemmKind::kOutput;
  if (kind == "grad_input") return GemmKind::kGradInput;
  TORCH_CHECK(kind == "grad_weight", "gemm: expected kind output, grad_input or grad_weight, got '", kind, "'");
  return GemmKind::kGradWeight;
}

at::Tensor multiply_checked(const ScaledTensor& a, const ScaledTensor& b, const std::optional<at::Tensor>& bias,
                            std::string_view kind, at::ScalarType dtype) {
  const GemmKind gemm = parse_kind(kind);
  const bool a_transposed = gemm == GemmKind::kGradWeight, b_transposed = gemm != GemmKind::kOutput;
  const int64_t m = a.data.size(a_transposed ? 1 : 0), n = b.data.size(b_transposed ? 1 : 0);
  TORCH_CHECK(a.data.size(a_transposed ? 0 : 1) == b.data.size(b_transposed ? 0 : 1),
              "gemm: expected a and b that fit ", kind, ", got ", a.data.sizes(), " and ", b.data.sizes());
  TORCH_CHECK(!bias || (bias->dim() == 1 && bias->size(0) == n), "gemm: expected a bias [", n, "], got ",
              bias ? bias->sizes() : at::IntArrayRef{});
  if (bias) check_values(*bias, "gemm", "bias");
  format_of(dtype, "gemm");
  at::Tensor output = at::empty({m, n}, a.data.options().dtype(dtype));
  const at::Tensor bias_fp32 = as_fp32(bias.value_or(at::Tensor()));
  multiply({.kind = gemm, .a = a, .b = b, .epilogue = {.bias = data_or_null(bias_fp32)}}, output);
  return output;
}

at::Tensor gemm_cpu(const at::Tensor& a, const at::Tensor& b, const std::optional<at::Tensor>& bias,
                    std::string_view kind, at::ScalarType dtype) {
  TORCH_CHECK(a.dim() == 2 && b.dim() == 2, "gemm: expected two matrices, got ", a.sizes(), " and ", b.sizes());
  const format::Format a_format = check_values(a, "gemm", "a"), b_format = check_values(b, "gemm", "b");
  return multiply_checked(plain_values(a.contiguous(), a_format), plain_values(b.contiguous(), b_format), bias, kind,
                          dtype);
}

at::Tensor scaled_gemm_cpu(const at::Tensor& a, const at::Tensor& b, const at::Tensor& scale_a,
                           const at::Tensor& scale_b, std::string_view format_a, std::string_view format_b,
                           at::IntArrayRef block_a, at::IntArrayRef block_b, const std::optional<at::Tensor>& bias,
                           std::string_view kind, at::ScalarType dtype) {
  return multiply_checked(scaled_tensor(a, scale_a, format_a, block_a, "scaled_gemm"),
                          scaled_tensor(b, scale_b, format_b, block_b, "scaled_gemm"), bias, kind, dtype);
}

at::Tensor activation_forward_cpu(const at::Tensor& x, std::string_view kind) {
  const format::Format format = check_values(x, "activation", "x");
  const kernels::Activation activation = parse_activation(kind);
  const at::Tensor matrix = as_matrix(x, "activation");
  std::vector<int64_t> sizes = x.sizes().vec();
  if (kernels::is_gated(activation)) {
    TORCH_CHECK(sizes.back() % 2 == 0, "activation: expected an even last dimension for ", kind, ", got ", x.sizes());
    sizes.back() /= 2;
  }
  return activate(activation, matrix, format, 1.0f).values.view(sizes);
}

at::Tensor activation_backward_cpu(const at::Tensor& x, const at::Tensor& grad, std::string_view kind) {
  const format::Format format = check_values(x, "activation", "x");
  const kernels::Activation activation = parse_activation(kind);
  const at::Tensor x_matrix = as_matrix(x, "activation"), grad_matrix = as_matrix(grad, "activation");
  const int64_t halves = kernels::is_gated(activation) ? 2 : 1;
  check_values(grad, "activation", "the gradient");
  TORCH_CHECK(grad_matrix.size(0) == x_matrix.size(0) && grad_matrix.size(1) * halves == x_matrix.size(1),
              "activation: expected a gradient that fits x ", x.sizes(), " of ", kind, ", got ", grad.sizes());
  return activation_gradient({activation, x_matrix, grad_matrix}, format, 1.0f).values.view(x.sizes());
}

kernels::SoftmaxShape softmax_shape(const at::Tensor& x) {
  return {.batch = x.size(0), .heads = x.size(1), .queries = x.size(2), .keys = x.size(3)};
}

at::Tensor softmax_forward_cpu(const at::Tensor& x, double scale, std::string_view mask_type,
                               const std::optional<at::Tensor>& mask) {
  const format::Format format = check_values(x, "softmax", "x");
  TORCH_CHECK(x.dim() == 4, "softmax: expected x [batch, heads, queries, keys], got ", x.sizes());
  const at::Tensor dense = x.contiguous();
  at::Tensor y = at::empty(x.sizes(), x.options());
  kernels::SoftmaxForward args{.shape = softmax_shape(x),
                               .x = dense.const_data_ptr(),
                               .y = y.mutable_data_ptr(),
                               .format = format,
                               .scale = static_cast<float>(scale),
                               .causal = parse_causal(mask_type, "softmax")};
  at::Tensor broadcast;
  if (mask) {
    TORCH_CHECK(mask->scalar_type() == at::kBool, "softmax: expected a mask of bool, got ", mask->scalar_type());
    broadcast = mask->contiguous().expand(x.sizes());
    if (broadcast.size(3) > 1 && broadcast.stride(3) != 1) broadcast = broadcast.contiguous();
    args.mask = reinterpret_cast<const uint8_t*>(broadcast.const_data_ptr<bool>());
    args.mask_batch_stride = broadcast.stride(0);
    args.mask_head_stride = broadcast.stride(1);
    args.mask_query_stride = broadcast.stride(2);
  }
  const watch::Span span("softmax", {.bytes = traffic(dense, y)});
  kernels::softmax_forward(args);
  return y;
}

at::Tensor softmax_backward_cpu(const at::Tensor& y, const at::Tensor& grad, double scale) {
  const format::Format format = check_values(y, "softmax", "y");
  TORCH_CHECK(y.dim() == 4, "softmax: expected y [batch, heads, queries, keys], got ", y.sizes());
  check_values(grad, "softmax", "the gradient");
  check_sizes(grad, y.sizes(), "softmax", "a gradient");
  const at::Tensor y_dense = y.contiguous(), grad_dense = grad.to(y.scalar_type()).contiguous();
  at::Tensor dx = at::empty(y.sizes(), y_dense.options());
  const watch::Span span("softmax backward", {.bytes = traffic(y_dense, grad_dense, dx)});
  kernels::softmax_backward({.shape = softmax_shape(y),
                             .y = y_dense.const_data_ptr(),
                             .dy = grad_dense.const_data_ptr(),
                             .dx = dx.mutable_data_ptr(),
                             .format = format,
                             .scale = static_cast<float>(scale)});
  return dx;
}

}  // namespace

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> norm_forward_cpu(const at::Tensor& x,
                                                                            const std::optional<at::Tensor>& residual,
                                                                            const at::Tensor& weight,
                                                                            const std::optional<at::Tensor>& bias,
                                                                            std::string_view kind, bool zero_centered,
                                                                            double epsilon, at::ScalarType dtype) {
  const at::Tensor none;
  const NormInput input{x, residual.value_or(none), weight, bias.value_or(none)};
  const NormOptions options = norm_options({kind, zero_centered, epsilon});
  check_norm(input, options, "norm");
  NormPass pass = norm_pass(input, options);
  const at::Tensor output = norm_producer(pass, input.residual)(format_of(dtype, "norm"), 1.0f).values;
  const at::Tensor empty = at::empty({0}, x.options().dtype(at::kFloat));
  return {output.view(x.sizes()), residual ? pass.x.view(x.sizes()) : at::empty({0}, x.options()),
          pass.mean.defined() ? pass.mean : empty, pass.rstd};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> norm_backward_cpu(
    const at::Tensor& grad, const std::optional<at::Tensor>& grad_sum, const at::Tensor& x, const at::Tensor& weight,
    const at::Tensor& mean, const at::Tensor& rstd, std::string_view kind, bool zero_centered, double epsilon) {
  check_values(grad, "norm", "the gradient");
  const NormPass pass{.options = norm_options({kind, zero_centered, epsilon}),
                      .x = as_matrix(x, "norm"),
                      .weight = weight,
                      .mean = mean,
                      .rstd = rstd};
  check_norm({.x = x, .weight = weight}, pass.options, "norm");
  check_sizes(grad, x.sizes(), "norm", "a gradient");
  if (grad_sum) check_sizes(*grad_sum, x.sizes(), "norm", "a gradient of the sum");
  const int64_t rows = pass.x.size(0);
  const bool has_mean = pass.options.kind == kernels::NormKind::kLayerNorm;
  TORCH_CHECK(rstd.numel() == rows && rstd.scalar_type() == at::kFloat && (!has_mean || mean.numel() == rows) &&
                  mean.scalar_type() == at::kFloat && mean.is_contiguous() && rstd.is_contiguous(),
              "norm: expected a dense fp32 mean and rstd of ", rows, " rows, got ", mean.sizes(), " of ",
              mean.scalar_type(), " and ", rstd.sizes(), " of ", rstd.scalar_type());
  const NormGradients result =
      run_norm_backward(pass, as_matrix(grad, "norm"), grad_sum.value_or(at::Tensor()), x.sizes());
  return {result.x, result.weight, result.bias.defined() ? result.bias : at::empty({0}, result.weight.options())};
}

void register_cpu(torch::Library& library) {
  library.impl("quantize", &quantize_cpu);
  library.impl("quantize_blocks", &quantize_blocks_cpu);
  library.impl("dequantize", &dequantize_cpu);
  library.impl("amax", &amax_cpu);
  library.impl("column_sum", &column_sum_cpu);
  library.impl("transpose", &transpose_cpu);
  library.impl("gemm", &gemm_cpu);
  library.impl("scaled_gemm", &scaled_gemm_cpu);
  library.impl("norm_forward", &norm_forward_cpu);
  library.impl("norm_backward", &norm_backward_cpu);
  library.impl("activation_forward", &activation_forward_cpu);
  library.impl("activation_backward", &activation_backward_cpu);
  library.impl("softmax_forward", &softmax_forward_cpu);
  library.impl("softmax_backward", &softmax_backward_cpu);
}

}  // namespace plimsoll::ops
