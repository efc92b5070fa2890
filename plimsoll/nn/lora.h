// Low-rank adapters of one product of a layer: y + scaling * (dropout(x) A^T) B^T for each of its parts. Parameters:
// PART_A [rank, in] and PART_B [rows of the part, rank], which begin in FP32.
#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <string>
#include <vector>

#include "plimsoll/ops/linear/low_rank.h"

namespace plimsoll::nn {

// Rows of the layer's weight that have an adapter of their own: q_proj in a fused [q; k; v].
struct LoraPart {
  std::string name;  // of its parameters, without dots
  int64_t first_row = 0, rows = 0;

  friend bool operator==(const LoraPart&, const LoraPart&) = default;
};

struct LoraOptions {
  int64_t rank = 8;
  double alpha = 8;
  bool rank_stabilized = false;  // scaling alpha / sqrt(rank) (Kalajdzievski, arXiv 2312.03732) instead of alpha / rank
  double dropout = 0;            // of x, while training

  double scaling() const;

  friend bool operator==(const LoraOptions&, const LoraOptions&) = default;
};

class LoraImpl : public torch::nn::Cloneable<LoraImpl> {
 public:
  LoraImpl(int64_t in_features, std::vector<LoraPart> parts, LoraOptions options);
  void reset() override;
  // A as torch::nn::Linear draws it (Kaiming uniform with a = sqrt(5)), B zeros.
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;

  // x [..., in_features] -> what the layer makes of it, with what its adapters add, in the layer's dtype.
  at::Tensor forward(const at::Tensor& x, const ops::LayerOfInput& layer) const;
  // Sum that merging adds to the rows of a part: scaling * B A, FP32.
  at::Tensor delta(size_t part) const;

  int64_t in_features;
  std::vector<LoraPart> parts;
  LoraOptions options;
  std::vector<at::Tensor> a, b;  // of each part
};
TORCH_MODULE(Lora);

}  // namespace plimsoll::nn
