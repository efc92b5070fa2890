// Low-rank adapters of a linear layer's output: y + factor * (dropout(x) A^T) B^T. Differentiable once.
// Source: Hu et al., "LoRA: low-rank adaptation of large language models", ICLR 2022.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace plimsoll::ops {

// Adapter of some of the layer's rows.
struct LowRank {
  at::Tensor a;           // [rank, in]
  at::Tensor b;           // [rows, rank]
  int64_t first_row = 0;  // of the layer's weight
};

struct LowRankOptions {
  double factor = 1;
  double dropout = 0;  // of x, for each adapter anew; drawn from torch's CPU generator
};

// y [..., out] that a layer makes of x, and in backward its gradient of x. Nothing else holds either, for both are added to in place.
using LayerOfInput = std::function<at::Tensor(const at::Tensor& x)>;

// x [..., in], a and b fp32, bf16 or fp16 -> y of the layer with what adapters add, [..., out] in its dtype. All products are summed in
// FP32 of the values as they are, and the sum with y is rounded once for each adapter of a row. Saved for backward: x itself and x A^T, of
// dropout only its seed. A row has the same bits in every batch.
at::Tensor with_low_rank(const at::Tensor& x, const std::vector<LowRank>& adapters, const LowRankOptions& options,
                         const LayerOfInput& layer);

}  // namespace plimsoll::ops
