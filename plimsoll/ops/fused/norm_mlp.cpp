#include "plimsoll/ops/fused/norm_mlp.h"

#include <ATen/ops/empty.h>

#include <utility>

#include "plimsoll/ops/activation/activation_composed.h"
#include "plimsoll/ops/activation/activation_pass.h"
#include "plimsoll/ops/linear/linear_composed.h"
#include "plimsoll/ops/linear/linear_pass.h"
#include "plimsoll/ops/linear/token_gather.h"
#include "plimsoll/ops/norm/norm_composed.h"
#include "plimsoll/ops/norm/norm_pass.h"
#include "plimsoll/ops/tensor/arguments.h"
#include "plimsoll/ops/tensor/dtype.h"
#include "plimsoll/ops/tensor/quantize.h"
#include "plimsoll/watch/audit.h"
#include "plimsoll/watch/session.h"

namespace plimsoll::ops {
namespace {

using kernels::Activation;
using recipe::GemmKind;
using recipe::Role;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct NormMlpSaved {
  NormPass norm;
  LinearSaved fc1, fc2;
  kernels::ActivationSpec activation = {};
  at::Tensor pre_activation;  // [tokens, fc1 out]
  std::vector<int64_t> x_sizes;

  void exchange(SavedTensors& tensors) {
    norm.exchange(tensors);
    fc1.exchange(tensors);
    fc2.exchange(tensors);
    tensors.exchange(pre_activation);
  }
};

struct NormMlpCall {
  NormOptions options;
  kernels::ActivationSpec activation = {};
  LinearCall fc1, fc2;
};

struct NormMlpResult {
  at::Tensor output;
  NormMlpSaved saved;
};

// Whether the activation is part of fc1's epilogue, and its gradient of that of fc2's grad_input.
bool fuses_gelu(const kernels::ActivationSpec& activation, const at::Tensor& pre) {
  return activation.kind == Activation::kGelu && pre.device().is_cpu();
}

// Producer of the operand that fc1 and the activation make of the normalised rows.
Producer activated_producer(const LinearForward& fc1, NormMlpSaved& saved) {
  return [&fc1, &saved](format::Format format, const ScaleRef& scale) -> Produced {
    const format::Format wide = fc1.call.scaling.recipe->high_precision_format();
    const int64_t rows = fc1.input.rows(), cols = fc1.weight.size(0);
    at::Tensor& pre = saved.pre_activation;
    const at::TensorOptions options = at::TensorOptions(fc1.weight.device());
    pre = empty_rows({rows, 0}, cols, options.dtype(dtype_of(wide)));
    if (!fuses_gelu(saved.activation, pre)) {
      linear_output(fc1, {.tensor = pre, .format = wide}, saved.fc1);
      return activate(saved.activation, pre, format, scale);
    }
    const at::Tensor activated = empty_rows({rows, 0}, cols, options.dtype(dtype_of(format)));
    const AmaxSlot amax(activated.device());
    linear_output(fc1,
                  {.tensor = activated,
                   .format = format,
                   .epilogue = {.activation = kernels::GemmActivation::kGelu,
                                .aux = pre.mutable_data_ptr(),
                                .aux_format = wide,
                                .aux_stride = cols},
                   .scale = scale,
                   .amax = amax},
                  saved.fc1);
    return {activated, amax};
  };
}

bool sees_gate(const NormMlpSaved& saved) {
  const watch::Session* session = watch::current();
  return session != nullptr && session->sees_every_value() && kernels::is_gated(saved.activation.kind);
}

void report_part(const LinearScaling& layer, const char* place, const at::Tensor& values) {
  if (layer.state == nullptr || layer.state->name.empty()) return;
  watch::report(layer.state->name + "/" + place,
                {.format = format_of(values.scalar_type(), "norm_mlp"), .amax = ops::amax(values)});
}

// The gate, what it gates and their product, for a watch that sees every value.
void report_gated(const NormMlpSaved& saved, const NormMlpCall& call, const ScaledTensor& activated) {
  if (!sees_gate(saved)) return;
  const std::vector<at::Tensor> halves = saved.pre_activation.chunk(2, 1);
  report_part(call.fc1.scaling, "gate", halves[0]);
  report_part(call.fc1.scaling, "up", halves[1]);
  report_part(call.fc2.scaling, "hidden", dequantize(activated, saved.pre_activation.scalar_type()));
}

// The gradients of the gate and of what it gates, for the same.
void report_gated_gradient(const NormMlpSaved& saved, const ScaledTensor& gradient) {
  if (!sees_gate(saved) || !gradient.data.defined()) return;
  const std::vector<at::Tensor> halves = dequantize(gradient, at::kFloat).chunk(2, 1);
  report_part(saved.fc1.scaling, "grad_gate", halves[0]);
  report_part(saved.fc1.scaling, "grad_up", halves[1]);
}

NormMlpResult forward(const NormInput& input, const MlpWeights& weights, const NormMlpCall& call) {
  NormMlpResult result;
  NormMlpSaved& saved = result.saved;
  saved.norm = norm_pass(input, call.options);
  saved.activation = call.activation;
  saved.x_sizes = input.x.sizes().vec();
  OperandMaker fc1_maker(call.fc1.scaling, Pass::kForward, call.fc1.record);
  OperandMaker fc2_maker(call.fc2.scaling, Pass::kForward, call.fc2.record);
  const watch::AuditedLayer layer(fc1_maker.path());
  const Operands normalised =
      fc1_maker.produce(norm_producer(saved.norm, input.residual), Role::kInput, {.output = true});
  saved.fc1.input_scale = fc1_maker.known_scale();
  const LinearForward fc1{.input = of_all_tokens(call.fc1.scaling, Role::kInput, normalised.output),
                          .weight = weights.fc1_weight,
                          .bias = weights.fc1_bias,
                          .call = call.fc1,
                          .maker = fc1_maker};
  const Operands activated = fc2_maker.produce(activated_producer(fc1, saved), Role::kInput, {.output = true});
  saved.fc2.input_scale = fc2_maker.known_scale();
  report_gated(saved, call, activated.output);
  const format::Format wide = call.fc2.scaling.recipe->high_precision_format();
  const LinearParallel& fc1_parallel = call.fc1.scaling.parallel;
  result.output = empty_rows(fc1_parallel.product_sizes(input.x.sizes()), weights.fc2_weight.size(0),
                             input.x.options().dtype(dtype_of(wide)));
  linear_output({.input = activated.output,
                 .weight = weights.fc2_weight,
                 .bias = weights.fc2_bias,
                 .call = call.fc2,
                 .maker = fc2_maker},
                {.tensor = result.output, .format = wide}, saved.fc2);
  result.output = call.fc2.scaling.parallel.output(result.output);
  return result;
}

// The gradient of the pre-activation.
Producer pre_activation_gradient(const ScaledTensor& grad, const NormMlpSaved& saved, const OperandMaker& fc2_maker,
                                 at::Tensor* column_sum) {
  return [&grad, &saved, &fc2_maker, column_sum](format::Format format, const ScaleRef& scale) -> Produced {
    const at::Tensor& pre = saved.pre_activation;
    const int64_t rows = pre.size(0), cols = pre.size(1);
    if (!fuses_gelu(saved.activation, pre)) {
      // A device's kernel takes both in one format.
      const at::ScalarType dtype = pre.device().is_cpu() ? at::kFloat : pre.scalar_type();
      const at::Tensor activated = empty_rows({rows, 0}, saved.fc2.weight.cols(), pre.options().dtype(dtype));
      input_gradient(grad, saved.fc2, fc2_maker, {.tensor = activated, .format = format_of(dtype, "norm_mlp")});
      return activation_gradient({saved.activation, pre, activated}, format, scale, column_sum);
    }
    if (column_sum != nullptr) *column_sum = at::empty({cols}, at::kFloat);
    const at::Tensor gradient = empty_rows({rows, 0}, cols, pre.options().dtype(dtype_of(format)));
    const AmaxSlot amax(gradient.device());
    input_gradient(grad, saved.fc2, fc2_maker,
                   {.tensor = gradient,
                    .format = format,
                    .epilogue = {.activation = kernels::GemmActivation::kDGelu,
                                 .aux = pre.mutable_data_ptr(),
                                 .aux_format = format_of(pre.scalar_type(), "norm_mlp"),
                                 .aux_stride = cols,
                                 .column_sum = column_sum == nullptr ? nullptr : column_sum->mutable_data_ptr<float>()},
                    .scale = scale,
                    .amax = amax});
    return {gradient, amax};
  };
}

struct NormMlpGradients {
  at::Tensor normalised, fc1_weight, fc1_bias, fc2_weight, fc2_bias;
};

NormMlpGradients mlp_gradients(const at::Tensor& grad, const NormMlpSaved& saved) {
  NormMlpGradients result;
  const LinearNeeds fc1_needs = saved.fc1.needs, fc2_needs = saved.fc2.needs;
  OperandMaker fc1_maker(saved.fc1.scaling, Pass::kBackward, true);
  OperandMaker fc2_maker(saved.fc2.scaling, Pass::kBackward, true);
  const Operands grads = make_gradient(grad, saved.fc2.scaling, fc2_maker,
                                       {.grad_input = fc2_needs.input, .grad_weight = fc2_needs.weight},
                                       fc2_needs.bias ? &result.fc2_bias : nullptr);
  if (fc2_needs.bias) result.fc2_bias = result.fc2_bias.to(saved.fc2.bias_dtype);
  if (fc2_needs.weight) {
    const ScaledTensor input = fc2_maker.produce_again(activation_producer(saved.activation, saved.pre_activation),
                                                       Role::kInput, GemmKind::kGradWeight, saved.fc2.input_scale);
    result.fc2_weight = weight_gradient(grads.grad_weight, input, saved.fc2, fc2_maker);
  }
  if (!fc2_needs.input) return result;

  at::Tensor* const fc1_bias = fc1_needs.bias ? &result.fc1_bias : nullptr;
  const Operands pre_grads =
      fc1_maker.produce(pre_activation_gradient(grads.grad_input, saved, fc2_maker, fc1_bias), Role::kGradOutput,
                        {.grad_input = fc1_needs.input, .grad_weight = fc1_needs.weight});
  report_gated_gradient(saved, pre_grads.grad_input);
  if (fc1_needs.bias) result.fc1_bias = result.fc1_bias.to(saved.fc1.bias_dtype);
  if (fc1_needs.weight) {
    const ScaledTensor input = produce_input_again(norm_producer_again(saved.norm), saved.norm.x.size(0),
                                                   saved.fc1.scaling, fc1_maker, saved.fc1.input_scale);
    result.fc1_weight = weight_gradient(pre_grads.grad_weight, input, saved.fc1, fc1_maker);
  }
  if (fc1_needs.input) {
    const format::Format wide = saved.fc1.scaling.recipe->high_precision_format();
    const LinearParallel& parallel = saved.fc1.scaling.parallel;
    result.normalised = at::empty(parallel.product_sizes(saved.norm.x.sizes()), grad.options().dtype(dtype_of(wide)));
    input_gradient(pre_grads.grad_input, saved.fc1, fc1_maker, {.tensor = result.normalised, .format = wide});
    result.normalised = parallel.grad_input(result.normalised);
  }
  return result;
}

class NormMlpFunction : public torch::autograd::Function<NormMlpFunction> {
 public:
  using Optional = std::optional<at::Tensor>;
  // Returns {output} or, with a residual, {output, sum}.
  static variable_list forward(AutogradContext* context, const at::Tensor& x, const Optional& residual,
                               const at::Tensor& norm_weight, const Optional& norm_bias, const at::Tensor& fc1_weight,
                               const Optional& fc1_bias, const at::Tensor& fc2_weight, const Optional& fc2_bias,
                               const NormMlpCall& call) {
    const at::Tensor none;
    const NormInput input{x, residual.value_or(none), norm_weight, norm_bias.value_or(none)};
    const MlpWeights weights{fc1_weight, fc1_bias.value_or(none), fc2_weight, fc2_bias.value_or(none)};
    NormMlpResult result = ops::forward(input, weights, call);
    variable_list outputs{result.output};
    if (residual) outputs.push_back(result.saved.norm.x.view(x.sizes()));
    save(context, std::move(result.saved));
    return outputs;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    check_once_differentiable("norm_mlp");
    const NormMlpSaved saved = load<NormMlpSaved>(context);
    const OperandMaker named(saved.fc1.scaling, Pass::kBackward, true);
    const watch::AuditedLayer layer(named.path());
    const bool has_residual = gradients.size() == 2;
    NormMlpGradients mlp;
    if (gradients[0].defined()) mlp = mlp_gradients(as_matrix(gradients[0], "norm_mlp"), saved);
    const NormGradients norm =
        norm_gradients(saved.norm, mlp.normalised, has_residual ? gradients[1] : at::Tensor(), saved.x_sizes);
    return {norm.x,         has_residual ? norm.x : at::Tensor(),
            norm.weight,    norm.bias,
            mlp.fc1_weight, mlp.fc1_bias,
            mlp.fc2_weight, mlp.fc2_bias,
            at::Tensor()};
  }
};

// In terms of torch's operators, for tensors without memory of their own.
NormOutput composed_norm_mlp(const NormInput& input, const NormOptions& options, const MlpWeights& weights,
                             const kernels::ActivationSpec& activation, const MlpScaling& scaling) {
  const NormOutput normed = composed_norm(input, options);
  const at::Tensor inner = composed_linear(normed.output, weights.fc1_weight, weights.fc1_bias, scaling.fc1);
  return {.output = composed_linear(composed_activation(inner, activation), weights.fc2_weight, weights.fc2_bias,
                                    scaling.fc2),
          .sum = normed.sum};
}

}  // namespace

NormOutput norm_mlp(const NormInput& input, const NormOptions& options, const MlpWeights& weights,
                    const kernels::ActivationSpec& activation, const MlpScaling& scaling) {
  if (is_opaque(input.x) || is_opaque(weights.fc1_weight))
    return composed_norm_mlp(input, options, weights, activation, scaling);
  check_norm(input, options, "norm_mlp");
  check_linear({.op = "norm_mlp", .layer = "fc1 "}, input.x, input.x.size(-1), weights.fc1_weight, weights.fc1_bias);
  const int64_t halves = kernels::is_gated(activation.kind) ? 2 : 1;
  TORCH_CHECK(weights.fc1_weight.size(0) % halves == 0,
              "norm_mlp: expected an even number of rows in fc1 weight for a gated activation, got ",
              weights.fc1_weight.size(0));
  check_linear({.op = "norm_mlp", .layer = "fc2 "}, input.x, weights.fc1_weight.size(0) / halves, weights.fc2_weight,
               weights.fc2_bias);
  check_parallel(scaling.fc1.parallel, input.x, weights.fc1_bias, "norm_mlp");
  check_parallel(scaling.fc2.parallel, {}, weights.fc2_bias, "norm_mlp");
  const bool fc1_input = any_requires_grad(input);
  const bool fc2_input = fc1_input || requires_grad(weights.fc1_weight) || requires_grad(weights.fc1_bias);
  const NormMlpCall call{.options = options,
                         .activation = activation,
                         .fc1 = linear_call(scaling.fc1, fc1_input, weights.fc1_weight, weights.fc1_bias),
                         .fc2 = linear_call(scaling.fc2, fc2_input, weights.fc2_weight, weights.fc2_bias)};
  const variable_list outputs =
      NormMlpFunction::apply(input.x, optional(input.residual), input.weight, optional(input.bias), weights.fc1_weight,
                             optional(weights.fc1_bias), weights.fc2_weight, optional(weights.fc2_bias), call);
  return {outputs[0], outputs.size() == 2 ? outputs[1] : at::Tensor()};
}

}  // namespace plimsoll::ops
