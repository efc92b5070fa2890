#include "plimsoll/ops/rotary/rotary.h"

#include <ATen/ops/cos.h>
#include <ATen/ops/sin.h>
#include <torch/csrc/autograd/custom_function.h>

#include "plimsoll/ops/rotary/rotary_op.h"
#include "plimsoll/ops/tensor/arguments.h"

namespace plimsoll::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class RotaryFunction : public torch::autograd::Function<RotaryFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& angles,
                            const RotaryOptions& options) {
    const at::Tensor cosine = angles.cos(), sine = angles.sin();
    context->save_for_backward({cosine, sine});
    context->saved_data["position_dim"] = options.position_dim;
    context->saved_data["interleaved"] = options.interleaved;
    return dispatch::rotary(x, {cosine, sine}, options, Turn::kForward);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    check_once_differentiable("rotary");
    if (!gradients[0].defined()) return variable_list(3);
    const variable_list saved = context->get_saved_variables();
    const RotaryOptions options{.position_dim = context->saved_data["position_dim"].toInt(),
                                .interleaved = context->saved_data["interleaved"].toBool()};
    return {dispatch::rotary(gradients[0], {saved[0], saved[1]}, options, Turn::kTransposed), {}, {}};
  }
};

}  // namespace

at::Tensor rotary(const at::Tensor& x, const at::Tensor& angles, const RotaryOptions& options) {
  TORCH_CHECK(angles.scalar_type() == at::kFloat && !angles.requires_grad(),
              "rotary: expected angles of float32 without gradient, got ", angles.scalar_type(),
              angles.requires_grad() ? " with gradient" : "");
  return RotaryFunction::apply(x, angles, options);
}

}  // namespace plimsoll::ops
