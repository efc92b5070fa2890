#include "plimsoll/ops/fused/norm_linear.h"

#include <ATen/ops/empty.h>

#include <utility>

#include "plimsoll/ops/linear/linear_composed.h"
#include "plimsoll/ops/linear/linear_pass.h"
#include "plimsoll/ops/linear/token_gather.h"
#include "plimsoll/ops/norm/norm_composed.h"
#include "plimsoll/ops/norm/norm_pass.h"
#include "plimsoll/ops/tensor/arguments.h"
#include "plimsoll/ops/tensor/dtype.h"
#include "plimsoll/watch/audit.h"

namespace plimsoll::ops {
namespace {

using recipe::Role;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct NormLinearSaved {
  NormPass norm;
  LinearSaved linear;
  std::vector<int64_t> x_sizes;

  void exchange(SavedTensors& tensors) {
    norm.exchange(tensors);
    linear.exchange(tensors);
  }
};

struct NormLinearCall {
  NormOptions options;
  LinearCall linear;
};

struct NormLinearResult {
  at::Tensor output;
  NormLinearSaved saved;
};

NormLinearResult forward(const NormInput& input, const at::Tensor& weight, const at::Tensor& bias,
                         const NormLinearCall& call) {
  NormLinearResult result{
      .output = {}, .saved = {.norm = norm_pass(input, call.options), .linear = {}, .x_sizes = input.x.sizes().vec()}};
  OperandMaker maker(call.linear.scaling, Pass::kForward, call.linear.record);
  const watch::AuditedLayer layer(maker.path());
  const Operands normalised =
      maker.produce(norm_producer(result.saved.norm, input.residual), Role::kInput, {.output = true});
  result.saved.linear.input_scale = maker.known_scale();
  const format::Format format = call.linear.scaling.recipe->high_precision_format();
  const LinearParallel& parallel = call.linear.scaling.parallel;
  result.output =
      empty_rows(parallel.product_sizes(input.x.sizes()), weight.size(0), input.x.options().dtype(dtype_of(format)));
  linear_output({.input = of_all_tokens(call.linear.scaling, Role::kInput, normalised.output),
                 .weight = weight,
                 .bias = bias,
                 .call = call.linear,
                 .maker = maker},
                {.tensor = result.output, .format = format}, result.saved.linear);
  return result;
}

struct NormLinearGradients {
  at::Tensor input;  // of the normalised rows
  at::Tensor weight;
  at::Tensor bias;
};

NormLinearGradients linear_gradients(const at::Tensor& grad, const NormLinearSaved& saved) {
  const LinearNeeds needs = saved.linear.needs;
  OperandMaker maker(saved.linear.scaling, Pass::kBackward, true);
  NormLinearGradients result;
  const LinearScaling& scaling = saved.linear.scaling;
  const Operands grads = make_gradient(grad, scaling, maker, {.grad_input = needs.input, .grad_weight = needs.weight},
                                       needs.bias ? &result.bias : nullptr);
  if (needs.bias) result.bias = result.bias.to(saved.linear.bias_dtype);
  if (needs.input) {
    const format::Format format = scaling.recipe->high_precision_format();
    result.input =
        at::empty(scaling.parallel.product_sizes(saved.norm.x.sizes()), grad.options().dtype(dtype_of(format)));
    input_gradient(grads.grad_input, saved.linear, maker, {.tensor = result.input, .format = format});
    result.input = scaling.parallel.grad_input(result.input);
  }
  if (needs.weight) {
    const ScaledTensor input = produce_input_again(norm_producer_again(saved.norm), saved.norm.x.size(0), scaling,
                                                   maker, saved.linear.input_scale);
    result.weight = weight_gradient(grads.grad_weight, input, saved.linear, maker);
  }
  return result;
}

class NormLinearFunction : public torch::autograd::Function<NormLinearFunction> {
 public:
  // Returns {output} or, with a residual, {output, sum}.
  static variable_list forward(AutogradContext* context, const at::Tensor& x, const std::optional<at::Tensor>& residual,
                               const at::Tensor& norm_weight, const std::optional<at::Tensor>& norm_bias,
                               const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                               const NormLinearCall& call) {
    const NormInput input{x, residual.value_or(at::Tensor()), norm_weight, norm_bias.value_or(at::Tensor())};
    NormLinearResult result = ops::forward(input, weight, bias.value_or(at::Tensor()), call);
    variable_list outputs{result.output};
    if (residual) outputs.push_back(result.saved.norm.x.view(x.sizes()));
    save(context, std::move(result.saved));
    return outputs;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    check_once_differentiable("norm_linear");
    const NormLinearSaved saved = load<NormLinearSaved>(context);
    const OperandMaker named(saved.linear.scaling, Pass::kBackward, true);
    const watch::AuditedLayer layer(named.path());
    const bool has_residual = gradients.size() == 2;
    NormLinearGradients linear;
    if (gradients[0].defined()) linear = linear_gradients(as_matrix(gradients[0], "norm_linear"), saved);
    const NormGradients norm =
        norm_gradients(saved.norm, linear.input, has_residual ? gradients[1] : at::Tensor(), saved.x_sizes);
    return {norm.x,      has_residual ? norm.x : at::Tensor(), norm.weight, norm.bias, linear.weight, linear.bias,
            at::Tensor()};
  }
};

}  // namespace

NormOutput norm_linear(const NormInput& input, const NormOptions& options, const at::Tensor& weight,
                       const at::Tensor& bias, const LinearScaling& scaling) {
  if (is_opaque(input.x) || is_opaque(weight)) {
    const NormOutput normed = composed_norm(input, options);
    return {.output = composed_linear(normed.output, weight, bias, scaling), .sum = normed.sum};
  }
  check_norm(input, options, "norm_linear");
  check_linear({.op = "norm_linear", .layer = ""}, input.x, input.x.size(-1), weight, bias);
  check_parallel(scaling.parallel, input.x, bias, "norm_linear");
  TORCH_CHECK(scaling.parallel.mode != ParallelMode::kRow,
              "norm_linear: expected parallel_mode 'column', got 'row': a norm needs all features");
  const NormLinearCall call{options, linear_call(scaling, any_requires_grad(input), weight, bias)};
  const variable_list outputs = NormLinearFunction::apply(input.x, optional(input.residual), input.weight,
                                                          optional(input.bias), weight, optional(bias), call);
  return {outputs[0], outputs.size() == 2 ? outputs[1] : at::Tensor()};
}

}  // namespace plimsoll::ops
