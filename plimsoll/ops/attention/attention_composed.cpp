#include "plimsoll/ops/attention/attention_composed.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/scaled_dot_product_attention.h>

#include <optional>
#include <vector>

#include "plimsoll/ops/attention/attention_pass.h"
#include "plimsoll/ops/tensor/arguments.h"

namespace plimsoll::ops {
namespace {

// The matrix of a bias that has one element for each distance; any other bias as it is.
at::Tensor bias_matrix(const at::Tensor& bias, int64_t queries, int64_t keys) {
  if (!bias.defined() || !is_by_distance(bias, queries, keys)) return bias;
  const at::Tensor query = at::arange(queries).unsqueeze(1), key = at::arange(keys);
  std::vector<int64_t> sizes = bias.sizes().vec();
  if (sizes.size() > 1) sizes.pop_back();
  sizes.back() = queries;
  sizes.push_back(keys);
  return bias.index_select(-1, (key - query + (queries - 1)).flatten()).view(sizes);
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

}  // namespace plimsoll::ops
