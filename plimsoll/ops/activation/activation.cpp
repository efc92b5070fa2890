#include "plimsoll/ops/activation/activation.h"

#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>

#include <string>
#include <vector>

#include "plimsoll/ops/activation/activation_composed.h"
#include "plimsoll/ops/activation/activation_op.h"
#include "plimsoll/ops/tensor/arguments.h"
#include "plimsoll/recipe/names.h"

namespace plimsoll::ops {
namespace {

using kernels::Activation;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class ActivationFunction : public torch::autograd::Function<ActivationFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, Activation kind) {
    context->save_for_backward({x});
    context->saved_data["kind"] = static_cast<int64_t>(kind);
    return dispatch::activation_forward(x, name(kind));
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    check_once_differentiable("activation");
    const auto kind = static_cast<Activation>(context->saved_data["kind"].toInt());
    return {dispatch::activation_backward(context->get_saved_variables()[0], gradients[0], name(kind)), at::Tensor()};
  }
};

}  // namespace

at::Tensor activation(const at::Tensor& x, Activation kind) {
  if (is_opaque(x)) return composed_activation(x, kind);
  if (!at::GradMode::is_enabled()) return dispatch::activation_forward(x, name(kind));
  return ActivationFunction::apply(x, kind);
}

std::string_view name(Activation kind) { return kernels::info(kind).name; }

Activation parse_activation(std::string_view text) {
  std::vector<std::string_view> names;
  for (const kernels::ActivationInfo& activation : kernels::kActivations) {
    if (activation.name == text) return activation.kind;
    names.push_back(activation.name);
  }
  TORCH_CHECK(false, recipe::unknown_name("activation", text, names));
}

}  // namespace plimsoll::ops
