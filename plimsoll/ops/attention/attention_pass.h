// The kernels of attention on tensors: checks, allocation, strides. Private to this folder and autoscale/.
#pragma once

#include <ATen/core/TensorBody.h>

#include <array>
#include <optional>
#include <tuple>
#include <vector>

#include "plimsoll/kernels/attention/attention.h"
#include "plimsoll/ops/attention/attention.h"

namespace plimsoll::ops {

// Arguments of the passes beside query, key and value.
struct AttentionRules {
  std::optional<at::Tensor> key_lengths, mask, bias;  // key_lengths: int64
  double scale = 1.0;
  Causal causal = Causal::kNone;
  double dropout = 0.0;
  int64_t seed = 0;  // of the dropout
  int64_t window = 0;
  std::vector<int64_t> segments = {};  // lengths; the lse of each, [batch, heads, length], follows the one before
};

// [batch, heads or groups, seq, channels].
struct AttentionOperands {
  at::Tensor query, key, value;
  at::Tensor key_scale = {}, value_scale = {};  // of codes: fp32, broadcastable to [batch, groups, keys]

  bool has_codes() const { return key_scale.defined(); }
};

// Whether a mask or bias has one element for each distance: [.., 1, queries + keys - 1].
bool is_by_distance(const at::Tensor& x, int64_t queries, int64_t keys);

// Checks that qkv has the shape that `packed` says.
void check_packed(const at::Tensor& qkv, const PackedHeads& packed);

// Views of qkv [batch, seq, heads + 2 groups, channels].
AttentionOperands unpack_heads(const at::Tensor& qkv, const PackedHeads& packed);

// Uninitialised, [batch, heads, queries, channels] with the dimensions in memory in the order of query's. Symbolic
// sizes may pass.
at::Tensor empty_attention_output(const at::Tensor& query, const c10::SymInt& channels);

void check_attention(const AttentionOperands& operands, const AttentionRules& rules);

// {output, lse}; lse fp32 [batch, heads, queries].
std::tuple<at::Tensor, at::Tensor> attend(const AttentionOperands& operands, const AttentionRules& rules);

struct AttentionSaved {
  at::Tensor output, lse;
};
// The same into tensors of these sizes and dtypes: output with dense channels, lse contiguous.
void attend_into(const AttentionOperands& operands, const AttentionRules& rules, const AttentionSaved& to);

struct AttentionGradients {
  AttentionOperands to;  // where those of query, key and value are written, of their sizes and dtypes
  bool wants_bias = false;
  kernels::AttentionGradientFactors factors = {};
};
// Returns the gradient of the bias in its dtype, empty without a bias or unless wanted.
at::Tensor attend_backward(const at::Tensor& grad, const AttentionOperands& operands, const AttentionSaved& saved,
                           const AttentionRules& rules, const AttentionGradients& gradients);

}  // namespace plimsoll::ops
