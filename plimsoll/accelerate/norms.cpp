// Layer norm over the last dimension, with a weight, and its gradients.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <optional>
#include <utility>
#include <vector>

#include "plimsoll/accelerate/arguments.h"
#include "plimsoll/accelerate/operators.h"
#include "plimsoll/kernels/norm/norm.h"
#include "plimsoll/ops/tensor/arguments.h"
#include "plimsoll/ops/tensor/dtype.h"

namespace plimsoll::acceleration {
namespace {

struct NormArguments {
  Pass pass;
  const at::Tensor& x;
  const c10::IValue& shape;  // of what is normalised together
  std::optional<at::Tensor> weight;
  std::optional<at::Tensor> bias;
};

Outcome judge_norm(const NormArguments& call) {
  const at::Tensor& x = call.x;
  if (!call.weight) return Outcome::kShape;
  const at::Tensor& weight = *call.weight;
  // torch takes parameters in FP32 beside 16 bits, too.
  if (!has_values(x) || !has_values(weight) || (call.bias && !of_one_kind(weight, *call.bias)) ||
      (weight.scalar_type() != x.scalar_type() && weight.scalar_type() != at::kFloat))
    return Outcome::kDtype;
  if (!is_last_dimension(call.shape, x) || !weight.sizes().equals({x.size(-1)}) ||
      (call.bias && !call.bias->sizes().equals({x.size(-1)})))
    return Outcome::kShape;
  if (!x.is_contiguous()) return Outcome::kStrides;
  return choose({call.pass, ops::format_of(x.scalar_type(), "accelerate"), x.numel()}, processor(runtime::isa()));
}

// input, normalized_shape, weight, bias, eps -> output, mean, rstd
Outcome layer_norm(ops::CallStack& stack) {
  constexpr size_t kArguments = 5;
  const NormArguments call = {.pass = Pass::kLayerNorm,
                              .x = tensor(stack, kArguments, 0),
                              .shape = argument(stack, kArguments, 1),
                              .weight = optional_tensor(stack, kArguments, 2),
                              .bias = optional_tensor(stack, kArguments, 3)};
  if (const Outcome outcome = judge_norm(call); outcome != Outcome::kReplaced) return outcome;
  const at::Tensor weight = ops::as_fp32(*call.weight), bias = ops::as_fp32(call.bias.value_or(at::Tensor()));
  const format::Format format = ops::format_of(call.x.scalar_type(), "accelerate");
  const int64_t cols = call.x.size(-1), rows = call.x.numel() / cols;
  std::vector<int64_t> sizes = call.x.sizes().vec();
  sizes.back() = 1;
  at::Tensor y = at::empty_like(call.x);
  const at::Tensor mean = at::empty(sizes, weight.options()), rstd = at::empty(sizes, weight.options());
  kernels::norm_forward({.kind = kernels::NormKind::kLayerNorm,
                         .rows = rows,
                         .cols = cols,
                         .x = call.x.const_data_ptr(),
                         .x_format = format,
                         .weight = weight.const_data_ptr<float>(),
                         .bias = ops::data_or_null(bias),
                         .epsilon = static_cast<float>(argument(stack, kArguments, 4).toDouble()),
                         .y = y.mutable_data_ptr(),
                         .y_format = format,
                         .mean = mean.mutable_data_ptr<float>(),
                         .rstd = rstd.mutable_data_ptr<float>()});
  // Statistics are of the parameters' dtype.
  const at::ScalarType kept = call.weight->scalar_type();
  replace_arguments(stack, kArguments, std::move(y), mean.to(kept), rstd.to(kept));
  return Outcome::kReplaced;
}

// grad_out, input, normalized_shape, mean, rstd, weight, bias, output_mask -> gradients of input, weight, bias
Outcome layer_norm_backward(ops::CallStack& stack) {
  constexpr size_t kArguments = 8;
  const NormArguments call = {.pass = Pass::kLayerNormBackward,
                              .x = tensor(stack, kArguments, 1),
                              .shape = argument(stack, kArguments, 2),
                              .weight = optional_tensor(stack, kArguments, 5),
                              .bias = optional_tensor(stack, kArguments, 6)};
  const at::Tensor& grad = tensor(stack, kArguments, 0);
  if (!of_one_kind(call.x, grad)) return Outcome::kDtype;
  if (!grad.sizes().equals(call.x.sizes())) return Outcome::kShape;
  if (!grad.is_contiguous()) return Outcome::kStrides;
  const c10::List<bool> wants = argument(stack, kArguments, 7).toBoolList();
  if (!wants[0]) return Outcome::kShape;
  if (const Outcome outcome = judge_norm(call); outcome != Outcome::kReplaced) return outcome;
  const at::Tensor weight = ops::as_fp32(*call.weight), mean = ops::as_fp32(tensor(stack, kArguments, 3)),
                   rstd = ops::as_fp32(tensor(stack, kArguments, 4));
  const format::Format format = ops::format_of(call.x.scalar_type(), "accelerate");
  const int64_t cols = call.x.size(-1);
  at::Tensor dx = at::empty_like(call.x);
  const at::Tensor dweight = wants[1] ? at::empty({cols}, weight.options()) : at::Tensor(),
                   dbias = wants[2] ? at::empty({cols}, weight.options()) : at::Tensor();
  kernels::norm_backward({.kind = kernels::NormKind::kLayerNorm,
                          .rows = call.x.numel() / cols,
                          .cols = cols,
                          .dy = grad.const_data_ptr(),
                          .dy_format = format,
                          .x = call.x.const_data_ptr(),
                          .x_format = format,
                          .weight = weight.const_data_ptr<float>(),
                          .mean = mean.const_data_ptr<float>(),
                          .rstd = rstd.const_data_ptr<float>(),
                          .dx = dx.mutable_data_ptr(),
                          .dx_format = format,
                          .dweight = wants[1] ? dweight.mutable_data_ptr<float>() : nullptr,
                          .dbias = wants[2] ? dbias.mutable_data_ptr<float>() : nullptr});
  const at::ScalarType kept = call.weight->scalar_type();
  replace_arguments(stack, kArguments, std::move(dx), wants[1] ? dweight.to(kept) : at::Tensor(),
                    wants[2] ? dbias.to(kept) : at::Tensor());
  return Outcome::kReplaced;
}

}  // namespace

std::vector<Variant> norm_variants() {
  return {{"native_layer_norm", Operator::kLayerNorm, layer_norm},
          {"native_layer_norm_backward", Operator::kLayerNormBackward, layer_norm_backward}};
}

}  // namespace plimsoll::acceleration
