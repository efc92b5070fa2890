// Low-rank adapters of a linear layer's output: y + factor * (dropout(x) A^T) B^T. Differentiable once.
// Source: Hu et al., "LoRA: low-rank adaptation of large language models", ICLR 2022.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
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

// x [..., in], y [..., out], a and b fp32, bf16 or fp16 -> [..., out] in the dtype of y. All products are summed in FP32
// of the values as they are, and the sum with y is rounded once for each adapter of a row. Saved for backward: x itself and x A^T, of dropout only
// its seed. A row has the same bits in every batch.
at::Tensor add_low_rank(const at::Tensor& y, const at::Tensor& x, const std::vector<LowRank>& adapters,
                        const LowRankOptions& options);

}  // namespace plimsoll::ops
