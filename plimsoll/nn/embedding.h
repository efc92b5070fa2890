// Learned vectors of tokens and of positions.
#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

namespace plimsoll::nn {

// One vector a row: parameter weight [rows, dim], normal(0, 1) as torch::nn::Embedding.
class EmbeddingImpl : public torch::nn::Cloneable<EmbeddingImpl> {
 public:
  EmbeddingImpl(int64_t rows, int64_t dim);
  void reset() override;
  void pretty_print(std::ostream& stream) const override;

  int64_t rows, dim;
  at::Tensor weight;
};
TORCH_MODULE(Embedding);

struct TokensAndPositions {
  at::Tensor tokens;           // int64 [batch, seq]
  at::Tensor token_weight;     // [vocabulary, dim]
  at::Tensor position_weight;  // [context, dim]
  int64_t first_position = 0;
};

// token_weight[tokens] + position_weight[first_position .. first_position + seq) [batch, seq, dim], in `dtype` after
// one rounding. Gradients are sums in a fixed order, whatever the number of threads. Differentiable once.
at::Tensor embed(const TokensAndPositions& input, at::ScalarType dtype);

}  // namespace plimsoll::nn
