#include "plimsoll/ops/embedding/embedding.h"

#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include "plimsoll/ops/embedding/embedding_op.h"
#include "plimsoll/ops/tensor/arguments.h"

namespace plimsoll::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class EmbeddingFunction : public torch::autograd::Function<EmbeddingFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& token_weight,
                            const std::optional<at::Tensor>& position_weight, const at::Tensor& tokens,
                            int64_t first_position, at::ScalarType dtype) {
    context->save_for_backward({tokens});
    context->saved_data["first_position"] = first_position;
    context->saved_data["vocabulary"] = token_weight.size(0);
    context->saved_data["positions"] = position_weight ? position_weight->size(0) : 0;
    context->saved_data["dtype"] = token_weight.scalar_type();
    return dispatch::embedding_forward(tokens, token_weight, position_weight, first_position, dtype);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    check_once_differentiable("embedding");
    const auto saved = [&](const char* name) { return context->saved_data[name].toInt(); };
    const auto [token_grad, position_grad] = dispatch::embedding_backward(
        gradients[0], context->get_saved_variables()[0], saved("vocabulary"), saved("positions"),
        saved("first_position"), context->saved_data["dtype"].toScalarType());
    return {token_grad, saved("positions") > 0 ? position_grad : at::Tensor(), {}, {}, {}};
  }
};

}  // namespace

at::Tensor embedding(const TokensAndPositions& input, at::ScalarType dtype) {
  return EmbeddingFunction::apply(input.token_weight, optional(input.position_weight), input.tokens,
                                  input.first_position, dtype);
}

}  // namespace plimsoll::ops
