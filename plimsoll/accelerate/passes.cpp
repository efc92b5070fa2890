// Operators that read each element once: activations, their gradients and softmax.
#include <ATen/ops/empty_like.h>

#include <string_view>
#include <utility>

#include "plimsoll/accelerate/arguments.h"
#include "plimsoll/accelerate/operators.h"
#include "plimsoll/kernels/activation/activation.h"
#include "plimsoll/kernels/softmax/softmax.h"
#include "plimsoll/ops/tensor/dtype.h"

namespace plimsoll::acceleration {
namespace {

using kernels::Activation;

// `out` is the caller's tensor, or nullptr. other: a second operand of x's sizes, or nullptr.
struct PassArguments {
  Pass pass;
  const at::Tensor& x;
  const at::Tensor* other = nullptr;
  const at::Tensor* out = nullptr;
};

Outcome judge_pass(const PassArguments& call) {
  const auto& [pass, x, other, out] = call;
  if (!has_values(x) || (other != nullptr && !of_one_kind(x, *other)) || (out != nullptr && !of_one_kind(x, *out)))
    return Outcome::kDtype;
  if (x.dim() == 0 || x.numel() == 0 || (other != nullptr && !other->sizes().equals(x.sizes()))) return Outcome::kShape;
  if (!x.is_contiguous() || (other != nullptr && !other->is_contiguous())) return Outcome::kStrides;
  if (out != nullptr &&
      (!is_writable(*out, x.sizes()) || out->is_alias_of(x) || (other != nullptr && out->is_alias_of(*other))))
    return Outcome::kStrides;
  return choose({pass, ops::format_of(x.scalar_type(), "accelerate"), x.numel()}, processor(runtime::isa()));
}

at::Tensor result_of(const PassArguments& call) { return call.out != nullptr ? *call.out : at::empty_like(call.x); }

// The whole tensor as one row after another, because threads share rows.
struct Rows {
  int64_t rows, cols;
};
Rows rows_of(const at::Tensor& x) { return {x.numel() / x.size(-1), x.size(-1)}; }

Outcome activate(ops::CallStack& stack, size_t arguments, const PassArguments& call, Activation activation) {
  if (const Outcome outcome = judge_pass(call); outcome != Outcome::kReplaced) return outcome;
  at::Tensor y = result_of(call);
  const format::Format format = ops::format_of(call.x.scalar_type(), "accelerate");
  const auto [rows, cols] = rows_of(call.x);
  kernels::activation_forward({.activation = activation,
                               .rows = rows,
                               .cols = cols,
                               .x = call.x.const_data_ptr(),
                               .x_format = format,
                               .y = y.mutable_data_ptr(),
                               .y_format = format});
  replace_arguments(stack, arguments, std::move(y));
  return Outcome::kReplaced;
}

Outcome activation_gradient(ops::CallStack& stack, size_t arguments, const PassArguments& call, Activation activation) {
  if (const Outcome outcome = judge_pass(call); outcome != Outcome::kReplaced) return outcome;
  at::Tensor dx = result_of(call);
  const format::Format format = ops::format_of(call.x.scalar_type(), "accelerate");
  const auto [rows, cols] = rows_of(call.x);
  kernels::activation_backward({.activation = activation,
                                .rows = rows,
                                .cols = cols,
                                .x = call.x.const_data_ptr(),
                                .x_format = format,
                                .dy = call.other->const_data_ptr(),
                                .dy_format = format,
                                .dx = dx.mutable_data_ptr(),
                                .dx_format = format});
  replace_arguments(stack, arguments, std::move(dx));
  return Outcome::kReplaced;
}

const at::Tensor* out_of(const ops::CallStack& stack, size_t arguments, size_t functional) {
  return arguments > functional ? &tensor(stack, arguments, functional) : nullptr;
}

bool is_tanh(const ops::CallStack& stack, size_t arguments, size_t place) {
  return argument(stack, arguments, place).toStringView() == "tanh";
}

// self, approximate and, of the variant that writes, out.
template <size_t arguments>
Outcome gelu(ops::CallStack& stack) {
  const bool tanh = is_tanh(stack, arguments, 1);
  return activate(stack, arguments,
                  {.pass = tanh ? Pass::kGeluTanh : Pass::kGeluErf,
                   .x = tensor(stack, arguments, 0),
                   .out = out_of(stack, arguments, 2)},
                  tanh ? Activation::kGelu : Activation::kGeluErf);
}

// grad_output, self, approximate, grad_input.
template <size_t arguments>
Outcome gelu_backward(ops::CallStack& stack) {
  const bool tanh = is_tanh(stack, arguments, 2);
  return activation_gradient(stack, arguments,
                             {.pass = tanh ? Pass::kGeluTanhBackward : Pass::kGeluErfBackward,
                              .x = tensor(stack, arguments, 1),
                              .other = &tensor(stack, arguments, 0),
                              .out = out_of(stack, arguments, 3)},
                             tanh ? Activation::kGelu : Activation::kGeluErf);
}

template <size_t arguments>
Outcome silu(ops::CallStack& stack) {
  return activate(stack, arguments,
                  {.pass = Pass::kSilu, .x = tensor(stack, arguments, 0), .out = out_of(stack, arguments, 1)},
                  Activation::kSilu);
}

template <size_t arguments>
Outcome silu_backward(ops::CallStack& stack) {
  return activation_gradient(stack, arguments,
                             {.pass = Pass::kSiluBackward,
                              .x = tensor(stack, arguments, 1),
                              .other = &tensor(stack, arguments, 0),
                              .out = out_of(stack, arguments, 2)},
                             Activation::kSilu);
}

// self, dim, half_to_float, out.
template <size_t arguments>
Outcome softmax(ops::CallStack& stack) {
  const PassArguments call = {
      .pass = Pass::kSoftmax, .x = tensor(stack, arguments, 0), .out = out_of(stack, arguments, 3)};
  const int64_t dim = argument(stack, arguments, 1).toInt();
  if (argument(stack, arguments, 2).toBool()) return Outcome::kDtype;
  constexpr int64_t kLeastRow = 64;  // a shorter one costs what a row costs
  if (dim != -1 && dim != call.x.dim() - 1) return Outcome::kShape;
  if (call.x.dim() > 0 && call.x.size(-1) < kLeastRow) return Outcome::kSize;
  if (const Outcome outcome = judge_pass(call); outcome != Outcome::kReplaced) return outcome;
  at::Tensor y = result_of(call);
  const auto [rows, cols] = rows_of(call.x);
  kernels::softmax_forward({.shape = {.batch = 1, .heads = 1, .queries = rows, .keys = cols},
                            .x = call.x.const_data_ptr(),
                            .y = y.mutable_data_ptr(),
                            .format = ops::format_of(call.x.scalar_type(), "accelerate")});
  replace_arguments(stack, arguments, std::move(y));
  return Outcome::kReplaced;
}

}  // namespace

std::vector<Variant> pass_variants() {
  return {{"gelu", Operator::kGelu, gelu<2>},
          {"gelu.out", Operator::kGelu, gelu<3>},
          {"gelu_backward", Operator::kGeluBackward, gelu_backward<3>},
          {"gelu_backward.grad_input", Operator::kGeluBackward, gelu_backward<4>},
          {"silu", Operator::kSilu, silu<1>},
          {"silu.out", Operator::kSilu, silu<2>},
          {"silu_backward", Operator::kSiluBackward, silu_backward<2>},
          {"silu_backward.grad_input", Operator::kSiluBackward, silu_backward<3>},
          {"_softmax", Operator::kSoftmax, softmax<3>},
          {"_softmax.out", Operator::kSoftmax, softmax<4>}};
}

}  // namespace plimsoll::acceleration
