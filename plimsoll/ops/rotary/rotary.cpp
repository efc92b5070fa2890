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
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& cosine,
                            const at::Tensor& sine, const RotaryOptions& options) {
    context->save_for_backward({cosine, sine});
    context->saved_data["position_dim"] = options.position_dim;
    context->saved_data["interleaved"] = options.interleaved;
    context->saved_data["copied_heads"] = options.copied_heads;
    return dispatch::rotary(x, {cosine, sine}, options, Turn::kForward);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    check_once_differentiable("rotary");
    if (!gradients[0].defined()) return variable_list(4);
    const variable_list saved = context->get_saved_variables();
    const RotaryOptions options{.position_dim = context->saved_data["position_dim"].toInt(),
                                .interleaved = context->saved_data["interleaved"].toBool(),
                                .copied_heads = context->saved_data["copied_heads"].toInt()};
    return {dispatch::rotary(gradients[0], {saved[0], saved[1]}, options, Turn::kTransposed), {}, {}, {}};
  }
};

}  // namespace

at::Tensor rotary(const at::Tensor& x, const at::Tensor& angles, const RotaryOptions& options) {
  TORCH_CHECK(angles.scalar_type() == at::kFloat && !angles.requires_grad(),
              "rotary: expected angles of float32 without gradient, got ", angles.scalar_type(),
              angles.requires_grad() ? " with gradient" : "");
  return rotary(x, RotaryTurns{angles.cos(), angles.sin()}, options);
}

at::Tensor rotary(const at::Tensor& x, const RotaryTurns& turns, const RotaryOptions& options) {
  return RotaryFunction::apply(x, turns.cosine, turns.sine, options);
}

}  // namespace plimsoll::ops
