// Activations, in place and into the caller's tensor too, and their gradients.
#include <string_view>

#include "plimsoll/accelerate/arguments.h"
#include "plimsoll/accelerate/operators.h"
#include "plimsoll/accelerate/pass.h"
#include "plimsoll/kernels/activation/activation.h"

namespace plimsoll::acceleration {
namespace {

using kernels::Activation;

Outcome activate(ops::CallStack& stack, size_t arguments, const PassArguments& call, Activation activation) {
  return replace_by(stack, arguments, call, judge_pass(call), [&](const Rows& size, void* y) {
    const format::Format format = format_of(call.x);
    kernels::activation_forward({.activation = activation,
                                 .rows = size.rows,
                                 .cols = size.cols,
                                 .x = call.x.const_data_ptr(),
                                 .x_format = format,
                                 .y = y,
                                 .y_format = format});
  });
}

Outcome activation_gradient(ops::CallStack& stack, size_t arguments, const PassArguments& call, Activation activation) {
  return replace_by(stack, arguments, call, judge_pass(call), [&](const Rows& size, void* dx) {
    const format::Format format = format_of(call.x);
    kernels::activation_backward({.activation = activation,
                                  .rows = size.rows,
                                  .cols = size.cols,
                                  .x = call.x.const_data_ptr(),
                                  .x_format = format,
                                  .dy = call.other->const_data_ptr(),
                                  .dy_format = format,
                                  .dx = dx,
                                  .dx_format = format});
  });
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

// The variants that write into their operand.
Outcome gelu_in_place(ops::CallStack& stack) {
  const bool tanh = is_tanh(stack, 2, 1);
  const at::Tensor& x = tensor(stack, 2, 0);
  return activate(stack, 2, {.pass = tanh ? Pass::kGeluTanh : Pass::kGeluErf, .x = x, .out = &x},
                  tanh ? Activation::kGelu : Activation::kGeluErf);
}

Outcome silu_in_place(ops::CallStack& stack) {
  const at::Tensor& x = tensor(stack, 1, 0);
  return activate(stack, 1, {.pass = Pass::kSilu, .x = x, .out = &x}, Activation::kSilu);
}

}  // namespace

std::vector<Variant> activation_variants() {
  return {{"gelu", Operator::kGelu, gelu<2>},
          {"gelu.out", Operator::kGelu, gelu<3>},
          {"gelu_", Operator::kGelu, gelu_in_place},
          {"gelu_backward", Operator::kGeluBackward, gelu_backward<3>},
          {"gelu_backward.grad_input", Operator::kGeluBackward, gelu_backward<4>},
          {"silu", Operator::kSilu, silu<1>},
          {"silu.out", Operator::kSilu, silu<2>},
          {"silu_", Operator::kSilu, silu_in_place},
          {"silu_backward", Operator::kSiluBackward, silu_backward<2>},
          {"silu_backward.grad_input", Operator::kSiluBackward, silu_backward<3>}};
}

}  // namespace plimsoll::acceleration
