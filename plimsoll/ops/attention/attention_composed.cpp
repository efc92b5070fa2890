#include "plimsoll/ops/attention/attention_composed.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/where.h>
#include <c10/util/Exception.h>

#include <limits>
#include <optional>
#include <vector>

#include "plimsoll/ops/attention/attention_pass.h"
#include "plimsoll/ops/tensor/arguments.h"

namespace plimsoll::ops {
namespace {

// The matrix of a bias that has one element for each distance; any other bias as it is.
at::Tensor bias_matrix(const at::Tensor& bias, int64_t queries, int64_t keys) {
  if (!bias.defined() || !is_by_distance(bias, queries, keys)) return bias;
  const at::TensorOptions numbers = at::TensorOptions(bias.device()).dtype(at::kLong);
  const at::Tensor query = at::arange(queries, numbers).unsqueeze(1), key = at::arange(keys, numbers);
  std::vector<int64_t> sizes = bias.sizes().vec();
  if (sizes.size() > 1) sizes.pop_back();
  sizes.back() = queries;
  sizes.push_back(keys);
  return bias.index_select(-1, (key - query + (queries - 1)).flatten()).view(sizes);
}

// bool, broadcastable to [batch, heads, queries, keys]: which keys a query sees by its causal rule, window, key_lengths and mask.
// Undefined: all.
at::Tensor visible_keys(const at::Tensor& x, int64_t keys, const AttentionOptions& options) {
  const int64_t queries = x.size(2);
  const at::TensorOptions numbers = at::TensorOptions(x.device()).dtype(at::kLong);
  const bool is_causal = options.causal != Causal::kNone;
  at::Tensor visible;
  if (is_causal || options.key_lengths.defined()) {
    at::Tensor end = at::full({1, 1, 1, 1}, keys, numbers);
    if (options.key_lengths.defined()) end = end.minimum(options.key_lengths.to(at::kLong).view({-1, 1, 1, 1}));
    if (is_causal) {
      const int64_t offset = kernels::causal_offset(options.causal, queries, keys);
      end = end.minimum(at::arange(offset + 1, offset + 1 + queries, numbers).view({1, 1, queries, 1}));
    }
    const at::Tensor key = at::arange(keys, numbers);
    visible = key < end;
    if (options.window > 0) visible = visible.logical_and(key >= end - options.window);
  }
  if (!options.mask.defined()) return visible;
  const at::Tensor unmasked = options.mask.logical_not();
  return visible.defined() ? visible.logical_and(unmasked) : unmasked;
}

}  // namespace

bool composes_attention(const at::Tensor& query, const at::Tensor& key, const AttentionOptions& options) {
  // Torch's causal rule counts from the first key, and has no mask beside it.
  const bool counts_alike = options.causal == Causal::kTopLeft || query.size(2) == key.size(2);
  const bool same_causal = options.causal == Causal::kNone || (counts_alike && !options.bias.defined());
  return same_causal && options.window == 0 && query.size(1) == key.size(1) && !options.key_lengths.defined() &&
         !options.mask.defined() && options.dropout == 0 && options.segments.empty();
}

at::Tensor composed_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                              const AttentionOptions& options) {
  const at::Tensor bias = bias_matrix(options.bias, query.size(2), key.size(2));
  return at::scaled_dot_product_attention(query, key, value, optional(bias), 0.0, options.causal != Causal::kNone,
                                          options.scale == 0 ? std::nullopt : std::optional(options.scale));
}

at::Tensor torch_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                           const AttentionOptions& options) {
  TORCH_CHECK_NOT_IMPLEMENTED(options.segments.empty(),
                              "attention: expected fp32, bf16 or fp16 on the CPU with segments, got ",
                              query.scalar_type(), " on ", query.device());
  // Torch's own causal rule counts from the first key and has neither a window nor a mask beside it.
  const bool counts_alike = options.causal == Causal::kTopLeft || query.size(2) == key.size(2);
  const bool own_rule = options.causal != Causal::kNone && counts_alike && options.window == 0 &&
                        !options.mask.defined() && !options.key_lengths.defined() && !options.bias.defined();
  const at::Tensor visible = own_rule ? at::Tensor() : visible_keys(query, key.size(2), options);
  at::Tensor mask = visible;
  if (options.bias.defined()) {
    mask = bias_matrix(options.bias, query.size(2), key.size(2)).to(query.scalar_type());
    if (visible.defined()) mask = at::where(visible, mask, -std::numeric_limits<double>::infinity());
  }
  const at::Tensor attended = at::scaled_dot_product_attention(
      query, key, value, optional(mask), options.dropout, own_rule,
      options.scale == 0 ? std::nullopt : std::optional(options.scale), query.size(1) != key.size(1));
  return visible.defined() ? at::where(visible.any(-1, /*keepdim=*/true), attended, 0) : attended;
}

}  // namespace plimsoll::ops
