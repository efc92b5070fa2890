// Scaled dot-product attention with FP32 inside. Differentiable once. On a CUDA device it is torch's (attention_composed.h).
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <vector>

#include "plimsoll/ops/softmax/causal.h"

namespace plimsoll::ops {

struct AttentionOptions {
  double scale = 0.0;  // of the scores; 0: 1 / sqrt(channels)
  Causal causal = Causal::kNone;
  at::Tensor key_lengths = {};  // int64 or int32 [batch]: how many keys there are; undefined: all
  // Broadcastable to [batch, heads, queries, keys]; or [.., 1, queries + keys - 1], one for each distance: element
  // key - query + queries - 1. Undefined: none.
  at::Tensor mask = {};  // bool, true = masked
  at::Tensor bias = {};  // added to the scaled scores, fp32, bf16 or fp16; differentiable
  double dropout = 0.0;  // of the weights; drawn from torch's CPU generator
  // With a causal rule: a query sees the last so many keys of those that the rule and key_lengths leave it; what lies
  // before the first query's window is not read. 0: all.
  int64_t window = 0;
  // Lengths of texts that stand one after the other in each row: a text attends to itself alone, by the rules and with
  // the bits that it has alone. With as many keys as queries, and without key_lengths, mask and bias. Empty: one text.
  std::vector<int64_t> segments = {};
};

// query [batch, heads, queries, channels], key [batch, groups, keys, channels], value [batch, groups, keys, any], all
// fp32, all bf16 or all fp16; groups divides heads. Views are read in place if channels are contiguous. Returns [batch,
// heads, queries, value channels] in the dtype, its dimensions in memory in the order of query's, so that what follows
// a projection precedes the next one without a copy. A query that sees no key gives 0. Saved for backward: query, key,
// value, the output, and one fp32 number a query.
at::Tensor attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const AttentionOptions& options);

// Layout of query, key and value in a fused projection [batch, seq, heads + 2 groups, channels].
struct PackedHeads {
  int64_t heads, groups;
  bool interleaved = false;  // query, key, value of each head in turn (heads == groups), not all of each
};

// attention() on the parts of qkv; the gradient is one tensor, nothing is joined. Returns [batch, seq, heads,
// channels], dense in the order of qkv's dimensions.
at::Tensor attention_packed(const at::Tensor& qkv, const PackedHeads& packed, const AttentionOptions& options);

// Keys or values as E4M3 codes, value = scale * code.
struct AttentionCodes {
  at::Tensor codes;  // uint8 [batch, groups, keys, channels]
  at::Tensor scale;  // fp32, broadcastable to [batch, groups, keys]
};

// attention() over a cache of codes. No gradient, no dropout.
at::Tensor attention_over_codes(const at::Tensor& query, const AttentionCodes& key, const AttentionCodes& value,
                                const AttentionOptions& options);

}  // namespace plimsoll::ops
