#include "plimsoll/ops/composed.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/silu.h>

#include <array>
#include <vector>

#include "plimsoll/ops/attention_pass.h"
#include "plimsoll/ops/linear_pass.h"
#include "plimsoll/runtime/unexpected.h"

namespace plimsoll::ops {
namespace {

using kernels::Activation;

// Codes of a recipe would be made of memory.
void check_composed(const LinearScaling& scaling) {
  const recipe::Recipe* recipe = scaling.recipe.get();
  TORCH_CHECK(
      recipe == nullptr || (recipe->high_precision() && recipe->high_precision_format() == format::Format::kFp32),
      "linear: expected no recipe around tensors without memory of their own, such as scaled ones, got ",
      recipe->name(), "; autoscale has formats of products of its own");
  TORCH_CHECK(scaling.parallel.mode == ParallelMode::kNone && !scaling.main_grad.defined(),
              "linear: expected a layer that is whole, without main_grad, for tensors without memory of their own");
}

at::Tensor gate(const at::Tensor& x, Activation kind) {
  switch (kind) {
    case Activation::kGelu:
    case Activation::kGeglu:
      return at::gelu(x, "tanh");
    case Activation::kRelu:
    case Activation::kReglu:
      return at::relu(x);
    case Activation::kSilu:
    case Activation::kSwiglu:
      return at::silu(x);
  }
  runtime::unexpected("activation", static_cast<int>(kind));
}

}  // namespace

at::Tensor composed_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                           const LinearScaling& scaling) {
  check_composed(scaling);
  return at::linear(x, weight, optional(bias));
}

NormOutput composed_norm(const NormInput& input, const NormOptions& options) {
  const at::Tensor sum = input.residual.defined() ? input.x + input.residual : at::Tensor();
  const at::Tensor& x = sum.defined() ? sum : input.x;
  const at::Tensor weight = options.zero_centered ? input.weight + 1 : input.weight;
  const std::array<int64_t, 1> sizes = {x.size(-1)};
  if (options.kind == kernels::NormKind::kRmsNorm)
    return {.output = at::rms_norm(x, sizes, weight, options.epsilon), .sum = sum};
  return {.output = at::layer_norm(x, sizes, weight, optional(input.bias), options.epsilon), .sum = sum};
}

at::Tensor composed_activation(const at::Tensor& x, Activation kind) {
  if (!kernels::is_gated(kind)) return gate(x, kind);
  const std::vector<at::Tensor> halves = x.chunk(2, -1);
  return gate(halves[0], kind) * halves[1];
}

NormOutput composed_norm_mlp(const NormInput& input, const NormOptions& options, const MlpWeights& weights,
                             Activation activation, const MlpScaling& scaling) {
  const NormOutput normed = composed_norm(input, options);
  const at::Tensor inner = composed_linear(normed.output, weights.fc1_weight, weights.fc1_bias, scaling.fc1);
  return {.output = composed_linear(composed_activation(inner, activation), weights.fc2_weight, weights.fc2_bias,
                                    scaling.fc2),
          .sum = normed.sum};
}

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
  return same_causal && query.size(1) == key.size(1) && !options.key_lengths.defined() && !options.mask.defined() &&
         options.dropout == 0;
}

at::Tensor composed_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                              const AttentionOptions& options) {
  const at::Tensor bias = bias_matrix(options.bias, query.size(2), key.size(2));
  return at::scaled_dot_product_attention(query, key, value, optional(bias), 0.0, options.causal != Causal::kNone,
                                          options.scale == 0 ? std::nullopt : std::optional(options.scale));
}

}  // namespace plimsoll::ops
