#include "plimsoll/ops/linear.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <optional>
#include <utility>

#include "plimsoll/ops/dtype.h"
#include "plimsoll/ops/linear_pass.h"

namespace plimsoll::ops {
namespace {

using recipe::GemmKind;
using recipe::Role;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Saved {
  LinearSaved linear;
  at::Tensor x;  // SaveInput::kInput
  std::vector<int64_t> x_sizes;
  at::ScalarType x_dtype = at::kFloat;

  void exchange(SavedTensors& tensors) {
    linear.exchange(tensors);
    tensors.exchange(x);
  }
};

struct Result {
  at::Tensor output;
  Saved saved;
};

// A delayed amax is recorded where codes are made, so forward has to make all kinds of them.
bool keeps_input(const LinearCall& call) {
  const recipe::Recipe& recipe = *call.scaling.recipe;
  return call.needs.weight && call.scaling.save_input == SaveInput::kInput &&
         (recipe.delayed() == nullptr || recipe.shares_codes(Role::kInput));
}

Result forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const LinearCall& call) {
  OperandMaker maker(call.scaling, Pass::kForward, call.record);
  const bool keeps = keeps_input(call);
  const Operands input =
      maker.make(as_matrix(x, "linear"), Role::kInput, {.output = true, .grad_weight = call.needs.weight && !keeps});
  const std::optional<float> input_scale = maker.delayed_scale();
  const format::Format format = call.scaling.recipe->high_precision_format();
  Result result{
      .output = empty_rows(x.sizes(), weight.size(0), dtype_of(format)),
      .saved = {.linear = {}, .x = keeps ? x : at::Tensor(), .x_sizes = x.sizes().vec(), .x_dtype = x.scalar_type()}};
  linear_output({.input = input.output, .weight = weight, .bias = bias, .call = call, .maker = maker},
                {.tensor = result.output, .format = format}, result.saved.linear);
  result.saved.linear.input = input.grad_weight;
  result.saved.linear.input_scale = input_scale;
  return result;
}

class LinearFunction : public torch::autograd::Function<LinearFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, const LinearCall& call) {
    Result result = ops::forward(x, weight, bias.value_or(at::Tensor()), call);
    save(context, std::move(result.saved));
    return result.output;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    check_once_differentiable("linear");
    variable_list result(4);
    if (!gradients[0].defined()) return result;
    const Saved saved = load<Saved>(context);
    const LinearNeeds needs = saved.linear.needs;
    OperandMaker maker(saved.linear.scaling, Pass::kBackward, true);
    at::Tensor bias_gradient;
    const Operands grads =
        maker.make(as_matrix(gradients[0], "linear"), Role::kGradOutput,
                   {.grad_input = needs.input, .grad_weight = needs.weight}, needs.bias ? &bias_gradient : nullptr);
    if (needs.input) {
      result[0] = at::empty(saved.x_sizes, gradients[0].options().dtype(saved.x_dtype));
      input_gradient(grads.grad_input, saved.linear, maker,
                     {.tensor = result[0], .format = format_of(saved.x_dtype, "linear")});
    }
    if (needs.weight) {
      const ScaledTensor input = saved.x.defined() ? maker.make_again(as_matrix(saved.x, "linear"), Role::kInput,
                                                                      GemmKind::kGradWeight, saved.linear.input_scale)
                                                   : saved.linear.input;
      result[1] = weight_gradient(grads.grad_weight, input, saved.linear, maker);
    }
    if (needs.bias) result[2] = bias_gradient.to(saved.linear.bias_dtype);
    return result;
  }
};

}  // namespace

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const LinearScaling& scaling) {
  check_values(x, "linear", "x");
  TORCH_CHECK(x.dim() >= 1, "linear: expected x of one dimension or more, got a scalar");
  check_linear({.op = "linear", .layer = ""}, x.size(-1), weight, bias);
  return LinearFunction::apply(x, weight, optional(bias), linear_call(scaling, x.requires_grad(), weight, bias));
}

}  // namespace plimsoll::ops
