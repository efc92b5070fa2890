#include "plimsoll/ops/norm/norm_op.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <cmath>
#include <string_view>

#include "plimsoll/ops/dispatcher/find_operator.h"
#include "plimsoll/ops/dispatcher/meta.h"
#include "plimsoll/ops/norm/norm_pass.h"
#include "plimsoll/ops/tensor/arguments.h"
#include "plimsoll/ops/tensor/dtype.h"
#include "plimsoll/runtime/unexpected.h"

namespace plimsoll::ops {
namespace {

using kernels::NormKind;

std::string_view kind_name(NormKind kind) {
  switch (kind) {
    case NormKind::kLayerNorm:
      return "layernorm";
    case NormKind::kRmsNorm:
      return "rmsnorm";
  }
  runtime::unexpected("norm: kind", static_cast<int>(kind));
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> norm_forward_op(const at::Tensor& x,
                                                                           const std::optional<at::Tensor>& residual,
                                                                           const at::Tensor& weight,
                                                                           const std::optional<at::Tensor>& bias,
                                                                           std::string_view kind, bool zero_centered,
                                                                           double epsilon, at::ScalarType dtype) {
  const at::Tensor none;
  const NormInput input{x, residual.value_or(none), weight, bias.value_or(none)};
  const NormOptions options = parse_norm_options(kind, zero_centered, epsilon);
  check_norm(input, options, "norm");
  NormPass pass = norm_pass(input, options);
  const at::Tensor output = norm_producer(pass, input.residual)(format_of(dtype, "norm"), {}).values;
  const at::Tensor empty = at::empty({0}, x.options().dtype(at::kFloat));
  return {output.view(x.sizes()), residual ? pass.x.view(x.sizes()) : at::empty({0}, x.options()),
          pass.mean.defined() ? pass.mean : empty, pass.rstd};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> norm_backward_op(
    const at::Tensor& grad, const std::optional<at::Tensor>& grad_sum, const at::Tensor& x, const at::Tensor& weight,
    const at::Tensor& mean, const at::Tensor& rstd, std::string_view kind, bool zero_centered, double epsilon) {
  check_device_values(grad, "norm", "the gradient");
  check_same_device(x, grad, "norm", "the gradient");
  const NormPass pass{.options = parse_norm_options(kind, zero_centered, epsilon),
                      .x = as_matrix(x, "norm"),
                      .weight = weight,
                      .mean = mean,
                      .rstd = rstd};
  check_norm({.x = x, .weight = weight}, pass.options, "norm");
  check_sizes(grad, x.sizes(), "norm", "a gradient");
  if (grad_sum) check_sizes(*grad_sum, x.sizes(), "norm", "a gradient of the sum");
  const int64_t rows = pass.x.size(0);
  const bool has_mean = pass.options.kind == NormKind::kLayerNorm;
  TORCH_CHECK(rstd.numel() == rows && rstd.scalar_type() == at::kFloat && (!has_mean || mean.numel() == rows) &&
                  mean.scalar_type() == at::kFloat && mean.is_contiguous() && rstd.is_contiguous(),
              "norm: expected a dense fp32 mean and rstd of ", rows, " rows, got ", mean.sizes(), " of ",
              mean.scalar_type(), " and ", rstd.sizes(), " of ", rstd.scalar_type());
  const NormGradients result =
      run_norm_backward(pass, as_matrix(grad, "norm"), grad_sum.value_or(at::Tensor()), x.sizes());
  return {result.x, result.weight, result.bias.defined() ? result.bias : at::empty({0}, result.weight.options())};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> norm_forward_meta(
    const at::Tensor& x, const std::optional<at::Tensor>& residual, const at::Tensor& weight,
    const std::optional<at::Tensor>& bias, std::string_view kind, bool, double, at::ScalarType dtype) {
  check_one_device("norm", {x, residual, weight, bias});
  const at::Tensor sum = residual ? empty_like_dense(x, x.scalar_type()) : empty_meta({0}, x, x.scalar_type());
  const c10::SymInt rows = rows_of(x);
  const at::Tensor mean = empty_meta({kind == "rmsnorm" ? c10::SymInt(0) : rows}, x, at::kFloat);
  return {empty_like_dense(x, dtype), sum, mean, empty_meta({rows}, x, at::kFloat)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> norm_backward_meta(const at::Tensor& grad,
                                                                  const std::optional<at::Tensor>& grad_sum,
                                                                  const at::Tensor& x, const at::Tensor& weight,
                                                                  const at::Tensor& mean, const at::Tensor& rstd,
                                                                  std::string_view kind, bool, double) {
  check_one_device("norm", {x, grad, grad_sum, weight, mean, rstd});
  const at::Tensor dbias = empty_meta({kind == "rmsnorm" ? c10::SymInt(0) : x.sym_size(-1)}, x, at::kFloat);
  return {empty_like_dense(x, x.scalar_type()), empty_like_dense(weight, at::kFloat), dbias};
}

at::Tensor norm_op(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                   std::string_view kind, bool zero_centered, double epsilon, std::optional<at::ScalarType> dtype) {
  return norm({.x = x, .weight = weight, .bias = bias.value_or(at::Tensor())},
              parse_norm_options(kind, zero_centered, epsilon), dtype)
      .output;
}

std::tuple<at::Tensor, at::Tensor> norm_residual_op(const at::Tensor& x, const at::Tensor& residual,
                                                    const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                                                    std::string_view kind, bool zero_centered, double epsilon) {
  const NormOutput result = norm({.x = x, .residual = residual, .weight = weight, .bias = bias.value_or(at::Tensor())},
                                 parse_norm_options(kind, zero_centered, epsilon));
  return {result.output, result.sum};
}

}  // namespace

NormOptions parse_norm_options(std::string_view kind, bool zero_centered, double epsilon) {
  TORCH_CHECK(kind == "layernorm" || kind == "rmsnorm", "norm: expected kind layernorm or rmsnorm, got '", kind, "'");
  TORCH_CHECK(std::isfinite(epsilon) && epsilon >= 0, "norm: expected an epsilon that is finite and >= 0, got ",
              epsilon);
  return {.kind = kind == "rmsnorm" ? NormKind::kRmsNorm : NormKind::kLayerNorm,
          .zero_centered = zero_centered,
          .epsilon = epsilon};
}

void define_norm(torch::Library& library) {
  library.def(
      "norm_forward(Tensor x, Tensor? residual, Tensor weight, Tensor? bias, *, str kind, bool zero_centered, float epsilon, "
      "ScalarType dtype) -> (Tensor output, Tensor sum, Tensor mean, Tensor rstd)",
      {at::Tag::pt2_compliant_tag});
  library.def(
      "norm_backward(Tensor grad, Tensor? grad_sum, *, Tensor x, Tensor weight, Tensor mean, Tensor rstd, str kind, "
      "bool zero_centered, float epsilon) -> (Tensor dx, Tensor dweight, Tensor dbias)",
      {at::Tag::pt2_compliant_tag});
  library.def(
      "norm(Tensor x, Tensor weight, Tensor? bias=None, *, str kind='layernorm', bool zero_centered=False, "
      "float epsilon=1e-05, ScalarType? dtype=None) -> Tensor",
      &norm_op);
  library.def(
      "norm_residual(Tensor x, Tensor residual, Tensor weight, Tensor? bias=None, *, str kind='layernorm', "
      "bool zero_centered=False, float epsilon=1e-05) -> (Tensor output, Tensor sum)",
      &norm_residual_op);
}

void register_norm(torch::Library& library) {
  library.impl("norm_forward", &norm_forward_op);
  library.impl("norm_backward", &norm_backward_op);
}

void register_norm_meta(torch::Library& library) {
  library.impl("norm_forward", &norm_forward_meta);
  library.impl("norm_backward", &norm_backward_meta);
}

namespace dispatch {

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> norm_forward(
    const at::Tensor& x, const std::optional<at::Tensor>& residual, const at::Tensor& weight,
    const std::optional<at::Tensor>& bias, const NormOptions& options, at::ScalarType dtype) {
  static const auto op = find_operator<decltype(norm_forward_op)>("plimsoll::norm_forward");
  return op.call(x, residual, weight, bias, kind_name(options.kind), options.zero_centered, options.epsilon, dtype);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> norm_backward(const NormBackward& args, const NormOptions& options) {
  static const auto op = find_operator<decltype(norm_backward_op)>("plimsoll::norm_backward");
  return op.call(args.grad, args.grad_sum, args.x, args.weight, args.mean, args.rstd, kind_name(options.kind),
                 options.zero_centered, options.epsilon);
}

}  // namespace dispatch
}  // namespace plimsoll::ops
