#include "plimsoll/nn/embedding.h"

#include <ATen/ops/embedding.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include "plimsoll/ops/quantize.h"

namespace plimsoll::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class EmbedFunction : public torch::autograd::Function<EmbedFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& token_weight, const at::Tensor& position_weight,
                            const at::Tensor& tokens, int64_t first_position, at::ScalarType dtype) {
    context->save_for_backward({tokens});
    context->saved_data["first_position"] = first_position;
    context->saved_data["vocabulary"] = token_weight.size(0);
    context->saved_data["positions"] = position_weight.size(0);
    const at::Tensor positions = position_weight.narrow(0, first_position, tokens.size(1));
    return at::embedding(token_weight, tokens).add_(positions).to(dtype);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    TORCH_CHECK(!at::GradMode::is_enabled(), "embed: expected a backward pass without create_graph, got one with it");
    const at::Tensor tokens = context->get_saved_variables()[0];
    const at::Tensor grad = gradients[0].to(at::kFloat);
    const int64_t batch = tokens.size(0), seq = tokens.size(1), dim = grad.size(2);
    const at::Tensor token_grad = at::embedding_dense_backward(grad, tokens, context->saved_data["vocabulary"].toInt(),
                                                               /*padding_idx=*/-1, /*scale_grad_by_freq=*/false);
    const at::Tensor position_grad = at::zeros({context->saved_data["positions"].toInt(), dim}, grad.options());
    position_grad.narrow(0, context->saved_data["first_position"].toInt(), seq)
        .copy_(ops::column_sum(grad.reshape({batch, seq * dim})).view({seq, dim}));
    return {token_grad, position_grad, {}, {}, {}};
  }
};

}  // namespace

EmbeddingImpl::EmbeddingImpl(int64_t row_count, int64_t width) : rows(row_count), dim(width) { EmbeddingImpl::reset(); }

void EmbeddingImpl::reset() {
  weight = register_parameter("weight", at::empty({rows, dim}));
  const at::NoGradGuard no_grad;
  weight.normal_();
}

void EmbeddingImpl::pretty_print(std::ostream& stream) const {
  stream << "plimsoll::nn::Embedding(" << rows << ", " << dim << ")";
}

at::Tensor embed(const TokensAndPositions& input, at::ScalarType dtype) {
  const int64_t context = input.position_weight.size(0);
  TORCH_CHECK(input.tokens.dim() == 2 && input.tokens.scalar_type() == at::kLong,
              "embed: expected tokens int64 [batch, seq], got ", c10::toString(input.tokens.scalar_type()), " ",
              input.tokens.sizes());
  TORCH_CHECK(input.first_position + input.tokens.size(1) <= context, "embed: expected at most ", context,
              " positions, got ", input.first_position + input.tokens.size(1));
  return EmbedFunction::apply(input.token_weight, input.position_weight, input.tokens, input.first_position, dtype);
}

}  // namespace plimsoll::nn
