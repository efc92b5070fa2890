// RMS norm over the last dimension. torch composes it of other operators on the CPU, so that our kernels have a node of
// autograd's of their own here.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rsqrt.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <limits>
#include <optional>
#include <utility>

#include "plimsoll/accelerate/arguments.h"
#include "plimsoll/accelerate/operators.h"
#include "plimsoll/accelerate/pass.h"
#include "plimsoll/kernels/norm/norm.h"
#include "plimsoll/ops/tensor/arguments.h"
#include "plimsoll/ops/torch_internals/tracing.h"

namespace plimsoll::acceleration {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor gains_of(const std::optional<at::Tensor>& weight, const at::Tensor& x) {
  return weight ? ops::as_fp32(*weight) : at::ones({x.size(-1)}, x.options().dtype(at::kFloat));
}

// y, and 1 / root mean square of each row.
std::pair<at::Tensor, at::Tensor> normalise(const at::Tensor& x, const std::optional<at::Tensor>& weight,
                                            double epsilon) {
  const at::Tensor gains = gains_of(weight, x);
  const auto [rows, cols] = rows_of(x);
  std::pair<at::Tensor, at::Tensor> result = {at::empty_like(x), at::empty({rows}, gains.options())};
  kernels::norm_forward({.kind = kernels::NormKind::kRmsNorm,
                         .rows = rows,
                         .cols = cols,
                         .x = x.const_data_ptr(),
                         .x_format = format_of(x),
                         .weight = gains.const_data_ptr<float>(),
                         .epsilon = static_cast<float>(epsilon),
                         .y = result.first.mutable_data_ptr(),
                         .y_format = format_of(x),
                         .rstd = result.second.mutable_data_ptr<float>()});
  return result;
}

// Gradients that are differentiable themselves, of x and, where it is wanted, of the weight.
variable_list differentiable_gradients(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight,
                                       double epsilon) {
  const at::Tensor wide = x.to(at::kFloat);
  const at::Tensor normal = wide * at::rsqrt((wide * wide).mean(-1, true) + epsilon);
  const at::Tensor y = (weight.defined() ? normal * weight : normal).to(x.scalar_type());
  variable_list operands{x};
  if (ops::requires_grad(weight)) operands.push_back(weight);
  variable_list gradients = torch::autograd::grad({y}, operands, {grad}, true, true);
  gradients.resize(2);
  return gradients;
}

class RmsNorm : public torch::autograd::Function<RmsNorm> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const std::optional<at::Tensor>& weight,
                            double epsilon) {
    auto [y, rstd] = normalise(x, weight, epsilon);
    context->save_for_backward({x, weight.value_or(at::Tensor()), rstd});
    context->saved_data["epsilon"] = epsilon;
    return y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &rstd = saved[2];
    if (at::GradMode::is_enabled()) {
      variable_list wanted =
          differentiable_gradients(gradients[0], x, weight, context->saved_data["epsilon"].toDouble());
      wanted.emplace_back();
      return wanted;
    }
    const at::Tensor grad = gradients[0].contiguous(), gains = gains_of(ops::optional(weight), x);
    const bool wants_weight = weight.defined() && context->needs_input_grad(1);
    at::Tensor dx = at::empty_like(x);
    const at::Tensor dweight = wants_weight ? at::empty(weight.sizes(), gains.options()) : at::Tensor();
    const auto [rows, cols] = rows_of(x);
    kernels::norm_backward({.kind = kernels::NormKind::kRmsNorm,
                            .rows = rows,
                            .cols = cols,
                            .dy = grad.const_data_ptr(),
                            .dy_format = format_of(grad),
                            .x = x.const_data_ptr(),
                            .x_format = format_of(x),
                            .weight = gains.const_data_ptr<float>(),
                            .rstd = rstd.const_data_ptr<float>(),
                            .dx = dx.mutable_data_ptr(),
                            .dx_format = format_of(x),
                            .dweight = wants_weight ? dweight.mutable_data_ptr<float>() : nullptr});
    return {dx, wants_weight ? dweight.to(weight.scalar_type()) : at::Tensor(), at::Tensor()};
  }
};

// Whether nobody but autograd stands between the call and the kernel.
bool is_plain(const at::Tensor& x) { return !ops::is_traced(x) && !ops::has_tangent(x); }

// Whether autograd records the call for the weight alone. torch keeps the normalised values then, and we would keep x itself,
// which may be written in place, or be made in inference mode.
bool is_for_weight_alone(const at::Tensor& x, const std::optional<at::Tensor>& weight) {
  return at::GradMode::is_enabled() && !x.requires_grad() && weight && weight->requires_grad();
}

// input, normalized_shape, weight, eps -> output
Outcome rms_norm(ops::CallStack& stack) {
  constexpr size_t kArguments = 4;
  const at::Tensor& x = tensor(stack, kArguments, 0);
  const std::optional<at::Tensor> weight = optional_tensor(stack, kArguments, 2);
  // The result is of x's dtype beside a weight in FP32, too.
  if (!has_values(x) || (weight && (!has_values(*weight) ||
                                    (weight->scalar_type() != x.scalar_type() && weight->scalar_type() != at::kFloat))))
    return Outcome::kDtype;
  if (!is_last_dimension(argument(stack, kArguments, 1), x) || (weight && !weight->sizes().equals({x.size(-1)})))
    return Outcome::kShape;
  if (!is_plain(x) || (weight && !is_plain(*weight)) || ops::is_transformed()) return Outcome::kShape;
  if (is_for_weight_alone(x, weight)) return Outcome::kShape;
  if (const Outcome outcome = judge_pass({.pass = Pass::kRmsNorm, .x = x}); outcome != Outcome::kReplaced)
    return outcome;
  // torch's choice for all three dtypes.
  const double epsilon =
      argument(stack, kArguments, 3).toOptional<double>().value_or(double{std::numeric_limits<float>::epsilon()});
  at::Tensor y = at::GradMode::is_enabled() ? RmsNorm::apply(x, weight, epsilon) : normalise(x, weight, epsilon).first;
  replace_arguments(stack, kArguments, std::move(y));
  return Outcome::kReplaced;
}

}  // namespace

std::vector<Variant> rms_norm_variants() { return {{"rms_norm", Operator::kRmsNorm, rms_norm, Level::kComposed}}; }

}  // namespace plimsoll::acceleration
