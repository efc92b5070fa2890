#include "plimsoll/ops/norm/norm.h"

#include <torch/csrc/autograd/custom_function.h>

#include "plimsoll/ops/norm/norm_composed.h"
#include "plimsoll/ops/norm/norm_op.h"
#include "plimsoll/ops/norm/norm_pass.h"
#include "plimsoll/ops/tensor/arguments.h"
#include "plimsoll/ops/tensor/saved.h"
#include "plimsoll/ops/watch/watched_operators.h"

namespace plimsoll::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Saved {
  NormPass pass;
  bool has_residual = false;
  void exchange(SavedTensors& tensors) { pass.exchange(tensors); }
};

struct Call {
  NormOptions options;
  at::ScalarType dtype;
};

class NormFunction : public torch::autograd::Function<NormFunction> {
 public:
  // Returns {output} or, with a residual, {output, sum}.
  static variable_list forward(AutogradContext* context, const at::Tensor& x, const std::optional<at::Tensor>& residual,
                               const at::Tensor& weight, const std::optional<at::Tensor>& bias, const Call& call) {
    auto [output, sum, mean, rstd] = dispatch::norm_forward(x, residual, weight, bias, call.options, call.dtype);
    variable_list outputs{output};
    if (residual) outputs.push_back(sum);
    save(context, Saved{.pass = {.options = call.options,
                                 .x = residual ? sum : x,
                                 .weight = weight,
                                 .bias = bias.value_or(at::Tensor()),
                                 .mean = mean,
                                 .rstd = rstd},
                        .has_residual = residual.has_value()});
    return outputs;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    check_once_differentiable("norm");
    const Saved saved = load<Saved>(context);
    const NormPass& pass = saved.pass;
    const at::Tensor grad_sum = saved.has_residual ? gradients[1] : at::Tensor();
    const auto residual = [&](const at::Tensor& gradient) { return saved.has_residual ? gradient : at::Tensor(); };
    if (!gradients[0].defined()) return {grad_sum, residual(grad_sum), at::Tensor(), at::Tensor(), at::Tensor()};
    const auto [dx, dweight, dbias] = dispatch::norm_backward({.grad = gradients[0],
                                                               .grad_sum = optional(grad_sum),
                                                               .x = pass.x,
                                                               .weight = pass.weight,
                                                               .mean = pass.mean,
                                                               .rstd = pass.rstd},
                                                              pass.options);
    const at::Tensor bias = pass.bias.defined() ? dbias.to(pass.bias.scalar_type()) : at::Tensor();
    return {dx, residual(dx), dweight.to(pass.weight.scalar_type()), bias, at::Tensor()};
  }
};

}  // namespace

NormOutput norm(const NormInput& input, const NormOptions& options, std::optional<at::ScalarType> dtype) {
  if (is_opaque(input.x) || is_opaque(input.weight)) return composed_norm(input, options);
  if (watch::Session* session = watch::current()) observe_operators(*session);
  const Call call{options, dtype.value_or(input.x.scalar_type())};
  if (!at::GradMode::is_enabled()) {  // without what autograd's function does beside
    const auto [output, sum, mean, rstd] = dispatch::norm_forward(input.x, optional(input.residual), input.weight,
                                                                  optional(input.bias), options, call.dtype);
    return {output, input.residual.defined() ? sum : at::Tensor()};
  }
  const variable_list outputs =
      NormFunction::apply(input.x, optional(input.residual), input.weight, optional(input.bias), call);
  return {outputs[0], outputs.size() == 2 ? outputs[1] : at::Tensor()};
}

}  // namespace plimsoll::ops
