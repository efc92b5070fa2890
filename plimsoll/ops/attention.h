// Attention on operands in 16 bits with FP32 inside: exact products, FP32 softmax and FP32 weights. Differentiable
// once.
#pragma once

#include <ATen/core/TensorBody.h>

namespace plimsoll::ops {

struct AttentionOptions {
  double scale = 0.0;   // of the scores; 0: 1 / sqrt(channels)
  bool causal = false;  // query i sees keys 0 .. i; needs as many keys as queries
};

// query [batch, heads, queries, channels], key and value [batch, heads, keys, channels], all bf16 or all fp16 -> the
// shape and dtype of query. Saved for backward: the three, the output, and one fp32 number a query; never anything of
// queries x keys. Torch's own 16-bit path rounds the softmax weights to 16 bits, and its many small bf16 products run
// at half the speed of FP32 on processors without AMX. CPU only.
at::Tensor attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const AttentionOptions& options);

}  // namespace plimsoll::ops
