#include "plimsoll/ops/activation/activation.h"

#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "plimsoll/ops/activation/activation_composed.h"
#include "plimsoll/ops/activation/activation_op.h"
#include "plimsoll/ops/tensor/arguments.h"
#include "plimsoll/recipe/names.h"

namespace plimsoll::ops {
namespace {

using kernels::Activation;
using kernels::ActivationParameter;
using kernels::ActivationSpec;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class ActivationFunction : public torch::autograd::Function<ActivationFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const ActivationSpec& spec) {
    context->save_for_backward({x});
    context->saved_data["kind"] = static_cast<int64_t>(spec.kind);
    context->saved_data["parameters"] = parameters_of(spec);
    return dispatch::activation_forward(x, name(spec.kind), parameters_of(spec));
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    check_once_differentiable("activation");
    const auto kind = static_cast<Activation>(context->saved_data["kind"].toInt());
    return {dispatch::activation_backward(context->get_saved_variables()[0], gradients[0], name(kind),
                                          context->saved_data["parameters"].toDoubleVector()),
            at::Tensor()};
  }
};

}  // namespace

at::Tensor activation(const at::Tensor& x, const ActivationSpec& spec) {
  if (is_opaque(x)) return composed_activation(x, spec);
  if (!at::GradMode::is_enabled()) return dispatch::activation_forward(x, name(spec.kind), parameters_of(spec));
  return ActivationFunction::apply(x, spec);
}

std::string_view name(Activation kind) { return kernels::info(kind).name; }

ActivationSpec activation_spec(Activation kind, at::ArrayRef<double> parameters) {
  ActivationSpec spec(kind);
  const auto& row = kernels::info(kind).parameters;
  const size_t count = parameters_of(spec).size();
  TORCH_CHECK_VALUE(parameters.empty() || parameters.size() == count, "activation: expected ", count, " parameters of ",
                    name(kind), ", got ", parameters.size());
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto value = static_cast<float>(parameters[i]);
    TORCH_CHECK_VALUE(std::isfinite(value) && (value > 0 || !row[i].positive), "activation: expected ", row[i].name,
                      " of ", name(kind), " that is finite", row[i].positive ? " and > 0" : "", ", got ",
                      parameters[i]);
    spec.parameters[i] = value;
  }
  return spec;
}

std::vector<double> parameters_of(const ActivationSpec& spec) {
  const auto& row = kernels::info(spec.kind).parameters;
  const auto count = std::ranges::count_if(row, [](const ActivationParameter& each) { return !each.name.empty(); });
  return {spec.parameters.begin(), spec.parameters.begin() + count};
}

Activation parse_activation(std::string_view text) {
  std::vector<std::string_view> names;
  for (const kernels::ActivationInfo& activation : kernels::kActivations) {
    if (activation.name == text) return activation.kind;
    names.push_back(activation.name);
  }
  TORCH_CHECK(false, recipe::unknown_name("activation", text, names));
}

}  // namespace plimsoll::ops
