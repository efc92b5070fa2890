// The operators as torch knows them: torch.ops.plimsoll.*. Formats are "fp32", "bf16", "fp16", "e4m3", "e5m2"; codes
// are uint8; blocks are [rows, cols] of the tensor as stored, 0 for the whole extent; a scale is fp32, or uint8
// exponents (E8M0), and dequantizes.
#include <torch/library.h>

#include "plimsoll/ops/activation.h"
#include "plimsoll/ops/dispatch.h"
#include "plimsoll/ops/find_operator.h"
#include "plimsoll/ops/library_attention.h"
#include "plimsoll/ops/library_cpu.h"
#include "plimsoll/ops/library_embedding.h"
#include "plimsoll/ops/library_linear.h"
#include "plimsoll/ops/library_loss.h"
#include "plimsoll/ops/library_meta.h"
#include "plimsoll/ops/library_rotary.h"
#include "plimsoll/ops/norm.h"
#include "plimsoll/ops/norm_pass.h"
#include "plimsoll/ops/softmax.h"

namespace plimsoll::ops {
namespace {

constexpr const char* kSchemas[] = {
    // x [rows, cols] with one given scale.
    "quantize(Tensor x, Tensor scale, str format) -> (Tensor codes, Tensor amax)",
    // The scale of each block from its own amax.
    "quantize_blocks(Tensor x, str format, int[2] block, str scale_format='fp32', bool power_of_two=False, "
    "str rounding='up') -> (Tensor codes, Tensor scale, Tensor amax)",
    "dequantize(Tensor codes, Tensor scale, str format, int[2] block, ScalarType dtype) -> Tensor",
    "amax(Tensor x) -> Tensor",
    "column_sum(Tensor x) -> Tensor",
    "transpose(Tensor x) -> Tensor",
    // The products of a linear layer: kind "output" a b^T, "grad_input" a b, "grad_weight" a^T b.
    "gemm(Tensor a, Tensor b, Tensor? bias, str kind, ScalarType dtype) -> Tensor",
    "scaled_gemm(Tensor a, Tensor b, Tensor scale_a, Tensor scale_b, str format_a, str format_b, int[2] block_a, "
    "int[2] block_b, Tensor? bias, str kind, ScalarType dtype) -> Tensor",
    "norm_forward(Tensor x, Tensor? residual, Tensor weight, Tensor? bias, str kind, bool zero_centered, float "
    "epsilon, "
    "ScalarType dtype) -> (Tensor output, Tensor sum, Tensor mean, Tensor rstd)",
    "norm_backward(Tensor grad, Tensor? grad_sum, Tensor x, Tensor weight, Tensor mean, Tensor rstd, str kind, "
    "bool zero_centered, float epsilon) -> (Tensor dx, Tensor dweight, Tensor dbias)",
    "activation_forward(Tensor x, str kind) -> Tensor",
    "activation_backward(Tensor x, Tensor grad, str kind) -> Tensor",
    "softmax_forward(Tensor x, float scale, str mask_type, Tensor? mask) -> Tensor",
    "softmax_backward(Tensor y, Tensor grad, float scale) -> Tensor",
};

at::Tensor defined_or_none(const std::optional<at::Tensor>& tensor) { return tensor.value_or(at::Tensor()); }

at::Tensor norm_op(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                   std::string_view kind, bool zero_centered, double epsilon, std::optional<at::ScalarType> dtype) {
  return norm({.x = x, .weight = weight, .bias = defined_or_none(bias)}, norm_options({kind, zero_centered, epsilon}),
              dtype)
      .output;
}

std::tuple<at::Tensor, at::Tensor> norm_residual_op(const at::Tensor& x, const at::Tensor& residual,
                                                    const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                                                    std::string_view kind, bool zero_centered, double epsilon) {
  const NormOutput result = norm({.x = x, .residual = residual, .weight = weight, .bias = defined_or_none(bias)},
                                 norm_options({kind, zero_centered, epsilon}));
  return {result.output, result.sum};
}

at::Tensor activation_op(const at::Tensor& x, std::string_view kind) { return activation(x, parse_activation(kind)); }

at::Tensor softmax_op(const at::Tensor& x, double scale, std::string_view mask_type,
                      const std::optional<at::Tensor>& mask) {
  return softmax(x, {.scale = scale, .causal = parse_causal(mask_type, "softmax"), .mask = defined_or_none(mask)});
}

}  // namespace

TORCH_LIBRARY(plimsoll, library) {
  for (const char* schema : kSchemas) library.def(schema, {at::Tag::pt2_compliant_tag});
  // Differentiable, made of the ones above.
  library.def("linear(Tensor x, Tensor weight, Tensor? bias=None, *, ScalarType? dtype=None) -> Tensor", &linear_op);
  library.def(
      "norm(Tensor x, Tensor weight, Tensor? bias=None, str kind='layernorm', bool zero_centered=False, "
      "float epsilon=1e-05, ScalarType? dtype=None) -> Tensor",
      &norm_op);
  library.def(
      "norm_residual(Tensor x, Tensor residual, Tensor weight, Tensor? bias=None, str kind='layernorm', "
      "bool zero_centered=False, float epsilon=1e-05) -> (Tensor output, Tensor sum)",
      &norm_residual_op);
  library.def("activation(Tensor x, str kind) -> Tensor", &activation_op);
  library.def("softmax(Tensor x, float scale=1.0, str mask_type='no_mask', Tensor? mask=None) -> Tensor", &softmax_op);
  define_attention(library);
  define_embedding(library);
  define_loss(library);
  define_rotary(library);
}

TORCH_LIBRARY_IMPL(plimsoll, CPU, library) {
  register_cpu(library);
  register_attention_cpu(library);
  register_embedding_cpu(library);
  register_loss_cpu(library);
  register_rotary_cpu(library);
}
TORCH_LIBRARY_IMPL(plimsoll, Meta, library) {
  register_meta(library);
  register_attention_meta(library);
  register_embedding_meta(library);
  register_loss_meta(library);
  register_rotary_meta(library);
}

c10::OperatorHandle find_operator(const char* name) { return c10::Dispatcher::singleton().findSchemaOrThrow(name, ""); }

namespace dispatch {

at::Tensor activation_forward(const at::Tensor& x, std::string_view kind) {
  static const auto op = find_operator<at::Tensor(const at::Tensor&, std::string_view)>("plimsoll::activation_forward");
  return op.call(x, kind);
}

at::Tensor activation_backward(const at::Tensor& x, const at::Tensor& grad, std::string_view kind) {
  static const auto op = find_operator<at::Tensor(const at::Tensor&, const at::Tensor&, std::string_view)>(
      "plimsoll::activation_backward");
  return op.call(x, grad, kind);
}

at::Tensor softmax_forward(const at::Tensor& x, double scale, std::string_view mask_type,
                           const std::optional<at::Tensor>& mask) {
  static const auto op =
      find_operator<at::Tensor(const at::Tensor&, double, std::string_view, const std::optional<at::Tensor>&)>(
          "plimsoll::softmax_forward");
  return op.call(x, scale, mask_type, mask);
}

at::Tensor softmax_backward(const at::Tensor& y, const at::Tensor& grad, double scale) {
  static const auto op =
      find_operator<at::Tensor(const at::Tensor&, const at::Tensor&, double)>("plimsoll::softmax_backward");
  return op.call(y, grad, scale);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> norm_forward(const at::Tensor& x,
                                                                        const std::optional<at::Tensor>& residual,
                                                                        const at::Tensor& weight,
                                                                        const std::optional<at::Tensor>& bias,
                                                                        const Norm& norm, at::ScalarType dtype) {
  static const auto op = find_operator<decltype(norm_forward_cpu)>("plimsoll::norm_forward");
  return op.call(x, residual, weight, bias, norm.kind, norm.zero_centered, norm.epsilon, dtype);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> norm_backward(const NormBackward& args, const Norm& norm) {
  static const auto op = find_operator<decltype(norm_backward_cpu)>("plimsoll::norm_backward");
  return op.call(args.grad, args.grad_sum, args.x, args.weight, args.mean, args.rstd, norm.kind, norm.zero_centered,
                 norm.epsilon);
}

at::Tensor gemm(const at::Tensor& a, const at::Tensor& b, const std::optional<at::Tensor>& bias, std::string_view kind,
                at::ScalarType dtype) {
  static const auto op =
      find_operator<at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, std::string_view,
                               at::ScalarType)>("plimsoll::gemm");
  return op.call(a, b, bias, kind, dtype);
}

at::Tensor column_sum(const at::Tensor& x) {
  static const auto op = find_operator<at::Tensor(const at::Tensor&)>("plimsoll::column_sum");
  return op.call(x);
}

}  // namespace dispatch
}  // namespace plimsoll::ops
