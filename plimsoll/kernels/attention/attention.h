// Scaled dot-product attention: weights = softmax(scale * q k^T + bias) over the keys that a query may see, output =
// dropout(weights) v. Softmax and sums are FP32; nothing of queries x keys is ever in memory. A query that may see no
// key gives 0 and takes no gradient. Products: FP32 multiply-adds of exactly converted operands, weights in FP32; with
// TDPBF16PS and VDPBF16PS (bf16 operands where it is fast), weights and their gradients rounded to bf16.
// Same bits for any thread count and whatever else is in the batch; forward also for a query in a whole sequence, in a
// chunk of it over the keys before, and alone, and wherever keys lie in pages. Source: Dao, "FlashAttention-2", 2023.
#pragma once

#include <cstdint>

#include "plimsoll/format/format.h"
#include "plimsoll/kernels/causal.h"

namespace plimsoll::kernels {

struct AttentionShape {
  int64_t batch = 0, heads = 0, groups = 0;  // groups: heads of k and v; head h reads group h / (heads / groups)
  int64_t queries = 0, keys = 0;
  int64_t channels = 0, value_channels = 0;
};

// A tensor [batch, heads or groups, rows, channels]: strides in elements, channels contiguous. Views of a fused
// projection and of a cache are such tensors.
struct AttentionInput {
  const void* data = nullptr;
  int64_t batch_stride = 0, head_stride = 0, row_stride = 0;
};
struct AttentionOutput {
  void* data = nullptr;
  int64_t batch_stride = 0, head_stride = 0, row_stride = 0;
};

// A matrix [batch, heads, queries, keys]; a stride of 0 broadcasts, and -1 of queries beside 1 of keys reads a vector
// of distances.
struct AttentionMatrixStrides {
  int64_t batch = 0, head = 0, query = 0, key = 0;
};

// Each draw depends on (seed, offset) and its place alone: the weight of query i and key j is dropped where
// word(((b * heads + h) * queries + i) * 4 * ceil(keys / 4) + j) of Philox{seed, offset} < probability * 2^32.
struct AttentionDropout {
  float probability = 0.0f;  // in [0, 1); weights that stay grow by 1 / (1 - probability)
  uint64_t seed = 0, offset = 0;
};

struct AttentionRules {
  float scale = 1.0f;
  Causal causal = Causal::kNone;
  int64_t window = 0;  // with a causal rule: the last so many keys of those that it and key_lengths leave; 0: all
  const int64_t* key_lengths = nullptr;  // [batch]: keys from there on are not there; k and v are not read there
  const uint8_t* mask = nullptr;         // nonzero: the query must not see the key
  AttentionMatrixStrides mask_strides = {};
  const void* bias =
      nullptr;  // added to the scaled scores; -Inf masks, beyond +-2.36e38 = FLT_MAX / log2 e it counts as that
  format::Format bias_format = format::Format::kFp32;
  AttentionMatrixStrides bias_strides = {};
  AttentionDropout dropout = {};
};

// FP32, one per [batch, group, key]; strides of 0 make it one for all.
struct AttentionScale {
  const float* data = nullptr;
  int64_t batch_stride = 0, group_stride = 0, key_stride = 0;
};

// Keys and values in pages: k, v and their scales are [pages, groups, rows, channels], their batch_stride leads from page
// to page, and key j of batch element b is row j % rows of page numbers[b][j / rows].
struct AttentionPages {
  const int32_t* const* numbers = nullptr;  // [batch], of as many pages as there are keys for; nullptr: no pages
  int64_t rows = 0;                         // a power of two, 16 or more
};

struct AttentionForward {
  AttentionShape shape = {};
  AttentionRules rules = {};
  format::Format format = format::Format::kFp32;        // of q and output: fp32, bf16, fp16
  AttentionInput q = {}, k = {}, v = {};                // heads of k and v are groups
  format::Format cache_format = format::Format::kFp32;  // of k and v: fp32, bf16, fp16, or E4M3 codes with scales
  AttentionScale k_scale = {}, v_scale = {};            // of codes
  AttentionPages pages = {};                            // of k and v
  AttentionOutput output = {};                          // channels are value_channels
  float* lse = nullptr;  // [batch, heads, queries] or nullptr: log(sum(exp(scores))); -Inf where no key is seen
};

void attention_forward(const AttentionForward& args);

// Factors on the gradients that are written, so that a narrow format holds them.
struct AttentionGradientFactors {
  float q = 1.0f, k = 1.0f, v = 1.0f;
};

struct AttentionBackward {
  AttentionShape shape = {};
  AttentionRules rules = {};  // as in forward
  format::Format format = format::Format::kFp32;
  AttentionInput q = {}, k = {}, v = {}, output = {}, grad_output = {};
  const float* lse = nullptr;
  AttentionOutput grad_q = {}, grad_k = {}, grad_v = {};
  AttentionGradientFactors factors = {};
  // FP32 or nullptr: the gradient of the bias is added to what is there. Strides of 0 sum over that dimension, in
  // order.
  float* grad_bias = nullptr;
  AttentionMatrixStrides grad_bias_strides = {};
};

void attention_backward(const AttentionBackward& args);

}  // namespace plimsoll::kernels
