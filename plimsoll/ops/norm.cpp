#include "plimsoll/ops/norm.h"

#include <optional>
#include <utility>

#include "plimsoll/ops/dtype.h"
#include "plimsoll/ops/linear_pass.h"
#include "plimsoll/ops/norm_pass.h"
#include "plimsoll/ops/saved.h"

namespace plimsoll::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct NormSaved {
  NormPass pass;
  std::vector<int64_t> x_sizes;
  void exchange(SavedTensors& tensors) { pass.exchange(tensors); }
};

struct NormCall {
  NormOptions options;
  at::ScalarType dtype;
};

class NormFunction : public torch::autograd::Function<NormFunction> {
 public:
  // Returns {output} or, with a residual, {output, sum}.
  static variable_list forward(AutogradContext* context, const at::Tensor& x, const std::optional<at::Tensor>& residual,
                               const at::Tensor& weight, const std::optional<at::Tensor>& bias, const NormCall& call) {
    const NormInput input{x, residual.value_or(at::Tensor()), weight, bias.value_or(at::Tensor())};
    NormPass pass = norm_pass(input, call.options);
    const Produced produced = norm_producer(pass, input.residual)(format_of(call.dtype, "norm"), 1.0f);
    variable_list outputs{produced.values.view(x.sizes())};
    if (residual) outputs.push_back(pass.x.view(x.sizes()));
    save(context, NormSaved{std::move(pass), x.sizes().vec()});
    return outputs;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    check_once_differentiable("norm");
    const NormSaved saved = load<NormSaved>(context);
    const bool has_residual = gradients.size() == 2;
    const at::Tensor grad = gradients[0].defined() ? as_matrix(gradients[0], "norm") : gradients[0];
    NormGradients result = norm_gradients(saved.pass, grad, has_residual ? gradients[1] : at::Tensor(), saved.x_sizes);
    return {result.x, has_residual ? result.x : at::Tensor(), result.weight, result.bias, at::Tensor()};
  }
};

}  // namespace

NormOutput norm(const NormInput& input, const NormOptions& options, std::optional<at::ScalarType> dtype) {
  check_norm(input, options, "norm");
  const NormCall call{options, dtype.value_or(input.x.scalar_type())};
  const variable_list outputs =
      NormFunction::apply(input.x, optional(input.residual), input.weight, optional(input.bias), call);
  return {outputs[0], outputs.size() == 2 ? outputs[1] : at::Tensor()};
}

}  // namespace plimsoll::ops
