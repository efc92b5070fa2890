#include "plimsoll/ops/linear/linear.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <optional>
#include <utility>

#include "plimsoll/ops/linear/linear_composed.h"
#include "plimsoll/ops/linear/linear_pass.h"
#include "plimsoll/ops/linear/token_gather.h"
#include "plimsoll/ops/tensor/arguments.h"
#include "plimsoll/ops/tensor/dtype.h"

namespace plimsoll::ops {
namespace {

using recipe::GemmKind;
using recipe::Role;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct LinearNode {
  LinearSaved linear;
  at::Tensor x;  // SaveInput::kInput
  std::vector<int64_t> x_sizes;
  at::ScalarType x_dtype = at::kFloat;

  void exchange(SavedTensors& tensors) {
    linear.exchange(tensors);
    tensors.exchange(x);
  }
};

struct LinearResult {
  at::Tensor output;
  LinearNode saved;
};

// A delayed amax is recorded where codes are made, so forward has to make all kinds of them.
bool keeps_input(const LinearCall& call, int64_t rows) {
  if (!call.needs.weight) return false;
  if (!codes_travel(call.scaling, Role::kInput, GemmKind::kGradWeight, rows)) return true;
  const recipe::Recipe& recipe = *call.scaling.recipe;
  return call.scaling.save_input == SaveInput::kInput &&
         (recipe.delayed() == nullptr || recipe.shares_codes(Role::kInput));
}

LinearResult forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const LinearCall& call) {
  OperandMaker maker(call.scaling, Pass::kForward, call.record);
  const at::Tensor rows = as_matrix(x, "linear");
  const bool keeps = keeps_input(call, rows.size(0));
  const LinearParallel& parallel = call.scaling.parallel;
  const Operands input = maker.make(rows, Role::kInput, {.output = true, .grad_weight = call.needs.weight && !keeps});
  const ScaleRef input_scale = maker.known_scale();
  const format::Format format = call.scaling.recipe->high_precision_format();
  LinearResult result{
      .output = empty_rows(parallel.product_sizes(x.sizes()), weight.size(0), x.options().dtype(dtype_of(format))),
      .saved = {.linear = {}, .x = keeps ? x : at::Tensor(), .x_sizes = x.sizes().vec(), .x_dtype = x.scalar_type()}};
  linear_output({.input = of_all_tokens(call.scaling, Role::kInput, input.output),
                 .weight = weight,
                 .bias = bias,
                 .call = call,
                 .maker = maker},
                {.tensor = result.output, .format = format}, result.saved.linear);
  result.output = parallel.output(result.output);
  result.saved.linear.input = input.grad_weight;
  result.saved.linear.input_scale = input_scale;
  return result;
}

// The input as grad_weight reads it.
ScaledTensor saved_input(const LinearNode& saved, const OperandMaker& maker) {
  const LinearScaling& scaling = saved.linear.scaling;
  if (!saved.x.defined()) return of_all_tokens(scaling, Role::kInput, saved.linear.input);
  const at::Tensor x = values_of_all_tokens(scaling, Role::kInput, as_matrix(saved.x, "linear"));
  return maker.make_again(x, Role::kInput, GemmKind::kGradWeight, saved.linear.input_scale);
}

class LinearFunction : public torch::autograd::Function<LinearFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, const LinearCall& call) {
    LinearResult result = ops::forward(x, weight, bias.value_or(at::Tensor()), call);
    save(context, std::move(result.saved));
    return result.output;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    check_once_differentiable("linear");
    variable_list result(4);
    if (!gradients[0].defined()) return result;
    const LinearNode saved = load<LinearNode>(context);
    const LinearNeeds needs = saved.linear.needs;
    const LinearParallel& parallel = saved.linear.scaling.parallel;
    OperandMaker maker(saved.linear.scaling, Pass::kBackward, true);
    at::Tensor bias_gradient;
    const Operands grads =
        make_gradient(as_matrix(gradients[0], "linear"), saved.linear.scaling, maker,
                      {.grad_input = needs.input, .grad_weight = needs.weight}, needs.bias ? &bias_gradient : nullptr);
    if (needs.input) {
      result[0] = at::empty(parallel.product_sizes(saved.x_sizes), gradients[0].options().dtype(saved.x_dtype));
      input_gradient(grads.grad_input, saved.linear, maker,
                     {.tensor = result[0], .format = format_of(saved.x_dtype, "linear")});
      result[0] = parallel.grad_input(result[0]);
    }
    if (needs.weight) {
      result[1] = weight_gradient(grads.grad_weight, saved_input(saved, maker), saved.linear, maker);
    }
    if (needs.bias) result[2] = bias_gradient.to(saved.linear.bias_dtype);
    return result;
  }
};

}  // namespace

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const LinearScaling& scaling) {
  if (is_opaque(x) || is_opaque(weight)) return composed_linear(x, weight, bias, scaling);
  check_device_values(x, "linear", "x");
  TORCH_CHECK(x.dim() >= 1, "linear: expected x of one dimension or more, got a scalar");
  TORCH_CHECK(weight.dim() != 2 || x.size(-1) == weight.size(1), "linear: expected x [..., ", weight.size(1), "], got ",
              x.sizes());
  check_linear({.op = "linear", .layer = ""}, x, x.size(-1), weight, bias);
  check_parallel(scaling.parallel, x, bias, "linear");
  return LinearFunction::apply(x, weight, optional(bias), linear_call(scaling, x.requires_grad(), weight, bias));
}

}  // namespace plimsoll::ops
