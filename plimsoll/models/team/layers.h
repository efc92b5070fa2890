// Layers of nn as parts of a step, for models that are made of them. A part whose weights inference has not kept, packed
// and in the dtype of the step, does not fit: fits(TeamStep).
#pragma once

#include <span>

#include "plimsoll/models/team/step.h"
#include "plimsoll/models/token_cache.h"
#include "plimsoll/nn/attention.h"
#include "plimsoll/nn/layer_norm.h"
#include "plimsoll/nn/layer_norm_linear.h"
#include "plimsoll/nn/layer_norm_mlp.h"
#include "plimsoll/nn/linear.h"
#include "plimsoll/nn/lora_scope.h"

namespace plimsoll::models {

StepNorm step_norm(const nn::NormParameters& affine, const ops::NormOptions& options);
inline StepNorm step_norm(const nn::Norm& norm) { return step_norm(norm->affine(), norm->options); }

// Rows of a step that follow one another, of texts with the same adapters.
struct AdaptedRows {
  const nn::LoraSet* adapters = nullptr;
  int64_t first_row = 0, rows = 0;
};

class StepLayers {
 public:
  // A step of so many rows. Products whose adapters are in force for all rows (nn::ScaledLayer) have those alone.
  StepLayers(at::ScalarType dtype, int64_t rows, std::span<const AdaptedRows> adapted = {})
      : dtype_(dtype), rows_(rows), adapted_(adapted) {}

  // weight [out, in], bias [out] or undefined, of the product of `state`.
  StepProduct product(const at::Tensor& weight, const at::Tensor& bias, ops::LinearState& state) const;
  StepProduct product(const nn::Linear& layer) const;
  // in: the fused projection [queries; keys; values] of `core`.
  StepLayer attention(const nn::LayerNormLinear& in, const nn::DotProductAttention& core, const nn::Linear& out) const;
  StepLayer feed_forward(const nn::LayerNormMlp& layer) const;

 private:
  StepProduct product(const at::Tensor& weight, const at::Tensor& bias, const nn::ScaledLayer::Product& of) const;

  at::ScalarType dtype_;
  int64_t rows_;
  std::span<const AdaptedRows> adapted_;
};

// Whether a step may follow what is in the cache: one token for each of its rows, room for it, and keys and values in
// `dtype`, in BF16 or in codes.
bool may_follow(TokenCache& cache, const at::Tensor& tokens, at::ScalarType dtype);

// The attention parts of the step over the cache, which grows by its tokens.
void extend(TokenCache& cache, TeamStep& step);

// The same over the caches of texts in pages, whose rows follow one another in the step.
struct TextCache {
  TokenCache& cache;
  int64_t rows = 0;
};
void extend(std::span<const TextCache> texts, TeamStep& step);

// Whether a step in `dtype` may write into the caches: they are in the pages of one memory.
bool share_pages(std::span<const TextCache> texts, at::ScalarType dtype);

}  // namespace plimsoll::models
