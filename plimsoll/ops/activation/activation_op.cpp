#include "plimsoll/ops/activation/activation_op.h"

#include <c10/util/Exception.h>

#include <string>
#include <tuple>
#include <vector>

#include "plimsoll/ops/activation/activation.h"
#include "plimsoll/ops/activation/activation_pass.h"
#include "plimsoll/ops/dispatcher/find_operator.h"
#include "plimsoll/ops/dispatcher/meta.h"
#include "plimsoll/ops/tensor/arguments.h"
#include "plimsoll/ops/tensor/dtype.h"

namespace plimsoll::ops {
namespace {

kernels::ActivationSpec parsed(std::string_view kind, at::ArrayRef<double> parameters) {
  return activation_spec(parse_activation(kind), parameters);
}

at::Tensor activation_forward_op(const at::Tensor& x, std::string_view kind, at::ArrayRef<double> parameters) {
  const format::Format format = check_device_values(x, "activation", "x");
  const kernels::ActivationSpec activation = parsed(kind, parameters);
  const at::Tensor matrix = as_matrix(x, "activation");
  std::vector<int64_t> sizes = x.sizes().vec();
  if (kernels::is_gated(activation.kind)) {
    TORCH_CHECK(sizes.back() % 2 == 0, "activation: expected an even last dimension for ", kind, ", got ", x.sizes());
    sizes.back() /= 2;
  }
  return activate(activation, matrix, format, {}).values.view(sizes);
}

at::Tensor activation_backward_op(const at::Tensor& x, const at::Tensor& grad, std::string_view kind,
                                  at::ArrayRef<double> parameters) {
  const format::Format format = check_device_values(x, "activation", "x");
  const kernels::ActivationSpec activation = parsed(kind, parameters);
  const at::Tensor x_matrix = as_matrix(x, "activation"), grad_matrix = as_matrix(grad, "activation");
  const int64_t halves = kernels::is_gated(activation.kind) ? 2 : 1;
  check_device_values(grad, "activation", "the gradient");
  check_same_device(x, grad, "activation", "the gradient");
  TORCH_CHECK(grad_matrix.size(0) == x_matrix.size(0) && grad_matrix.size(1) * halves == x_matrix.size(1),
              "activation: expected a gradient that fits x ", x.sizes(), " of ", kind, ", got ", grad.sizes());
  return activation_gradient({activation, x_matrix, grad_matrix}, format, {}).values.view(x.sizes());
}

at::Tensor activation_forward_meta(const at::Tensor& x, std::string_view kind, at::ArrayRef<double> parameters) {
  TORCH_CHECK(x.dim() >= 1, "activation: expected a tensor of one dimension or more, got a scalar");
  std::vector<c10::SymInt> sizes = x.sym_sizes().vec();
  if (kernels::is_gated(parsed(kind, parameters).kind)) sizes.back() = sizes.back() / 2;
  return empty_meta(sizes, x, x.scalar_type());
}

at::Tensor activation_backward_meta(const at::Tensor& x, const at::Tensor& grad, std::string_view,
                                    at::ArrayRef<double>) {
  check_one_device("activation", {x, grad});
  return empty_like_dense(x, x.scalar_type());
}

at::Tensor activation_op(const at::Tensor& x, std::string_view kind, at::ArrayRef<double> parameters) {
  return activation(x, parsed(kind, parameters));
}

std::vector<std::string> activation_names(bool gated) {
  std::vector<std::string> names;
  for (const kernels::ActivationInfo& activation : kernels::kActivations) {
    if (activation.gated == gated) names.emplace_back(activation.name);
  }
  return names;
}

std::tuple<std::vector<std::string>, std::vector<double>> activation_parameters(std::string_view kind,
                                                                                at::ArrayRef<double> values) {
  const kernels::ActivationSpec spec = parsed(kind, values);
  std::vector<std::string> names;
  for (const kernels::ActivationParameter& parameter : kernels::info(spec.kind).parameters) {
    if (!parameter.name.empty()) names.emplace_back(parameter.name);
  }
  return {names, parameters_of(spec)};
}

}  // namespace

void define_activation(torch::Library& library) {
  library.def("activation_forward(Tensor x, str kind, float[] parameters=[]) -> Tensor", {at::Tag::pt2_compliant_tag});
  library.def("activation_backward(Tensor x, Tensor grad, str kind, float[] parameters=[]) -> Tensor",
              {at::Tag::pt2_compliant_tag});
  library.def("activation(Tensor x, str kind, float[] parameters=[]) -> Tensor", &activation_op);
  library.def("activation_names(bool gated) -> str[]", &activation_names);
  library.def("activation_parameters(str kind, float[] values=[]) -> (str[] names, float[] values)",
              &activation_parameters);
}

void register_activation(torch::Library& library) {
  library.impl("activation_forward", &activation_forward_op);
  library.impl("activation_backward", &activation_backward_op);
}

void register_activation_meta(torch::Library& library) {
  library.impl("activation_forward", &activation_forward_meta);
  library.impl("activation_backward", &activation_backward_meta);
}

namespace dispatch {

at::Tensor activation_forward(const at::Tensor& x, std::string_view kind, at::ArrayRef<double> parameters) {
  static const auto op = find_operator<at::Tensor(const at::Tensor&, std::string_view, at::ArrayRef<double>)>(
      "plimsoll::activation_forward");
  return op.call(x, kind, parameters);
}

at::Tensor activation_backward(const at::Tensor& x, const at::Tensor& grad, std::string_view kind,
                               at::ArrayRef<double> parameters) {
  static const auto op =
      find_operator<at::Tensor(const at::Tensor&, const at::Tensor&, std::string_view, at::ArrayRef<double>)>(
          "plimsoll::activation_backward");
  return op.call(x, grad, kind, parameters);
}

}  // namespace dispatch
}  // namespace plimsoll::ops
