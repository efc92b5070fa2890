// Learned vectors, looked up by ops::embedding.
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

}  // namespace plimsoll::nn
