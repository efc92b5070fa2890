#include "plimsoll/ops/linear/linear_op.h"

#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <vector>

#include "plimsoll/ops/tensor/arguments.h"
#include "plimsoll/ops/tensor/dtype.h"
#include "plimsoll/ops/tensor/tensor_op.h"

namespace plimsoll::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor rows(const at::Tensor& x, at::ScalarType dtype) {
  return x.dim() == 1 ? x.to(dtype).unsqueeze(0) : x.to(dtype).flatten(0, -2);
}

class LinearOperatorFunction : public torch::autograd::Function<LinearOperatorFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, at::ScalarType dtype) {
    context->save_for_backward({x, weight, bias.value_or(at::Tensor())});
    context->saved_data["dtype"] = static_cast<int64_t>(dtype);
    std::vector<c10::SymInt> sizes = x.sym_sizes().vec();
    sizes.back() = weight.sym_size(0);
    return dispatch::gemm(rows(x, dtype), weight.to(dtype), bias, "output", dtype).view_symint(sizes);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    check_once_differentiable("linear");
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &bias = saved[2];
    const auto dtype = static_cast<at::ScalarType>(context->saved_data["dtype"].toInt());
    const at::Tensor grad = rows(gradients[0], dtype);
    variable_list result(4);
    if (x.requires_grad()) {
      result[0] = dispatch::gemm(grad, weight.to(dtype), std::nullopt, "grad_input", x.scalar_type())
                      .view_symint(x.sym_sizes());
    }
    if (weight.requires_grad()) {
      result[1] = dispatch::gemm(grad, rows(x, dtype), std::nullopt, "grad_weight", weight.scalar_type());
    }
    if (bias.defined()) result[2] = dispatch::column_sum(grad).to(bias.scalar_type());
    return result;
  }
};

at::Tensor linear_op(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                     std::optional<at::ScalarType> dtype) {
  TORCH_CHECK(x.dim() >= 1 && weight.dim() == 2 && x.sym_size(-1) == weight.sym_size(1),
              "linear: expected x [..., in] and weight [out, in], got ", x.sym_sizes(), " and ", weight.sym_sizes());
  const at::ScalarType product_dtype = dtype.value_or(weight.scalar_type());
  format_of(product_dtype, "linear");
  return LinearOperatorFunction::apply(x, weight, bias, product_dtype);
}

}  // namespace

void define_linear(torch::Library& library) {
  library.def("linear(Tensor x, Tensor weight, Tensor? bias=None, *, ScalarType? dtype=None) -> Tensor", &linear_op);
}

}  // namespace plimsoll::ops
