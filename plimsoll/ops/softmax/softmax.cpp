#include "plimsoll/ops/softmax/softmax.h"

#include <torch/csrc/autograd/custom_function.h>

#include "plimsoll/ops/softmax/softmax_op.h"
#include "plimsoll/ops/tensor/arguments.h"

namespace plimsoll::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class SoftmaxFunction : public torch::autograd::Function<SoftmaxFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const SoftmaxOptions& options) {
    at::Tensor y = dispatch::softmax_forward(x, options.scale, name(options.causal), optional(options.mask));
    context->save_for_backward({y});
    context->saved_data["scale"] = options.scale;
    return y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    check_once_differentiable("softmax");
    const double scale = context->saved_data["scale"].toDouble();
    return {dispatch::softmax_backward(context->get_saved_variables()[0], gradients[0], scale), at::Tensor()};
  }
};

}  // namespace

at::Tensor softmax(const at::Tensor& x, const SoftmaxOptions& options) { return SoftmaxFunction::apply(x, options); }

}  // namespace plimsoll::ops
