#include "plimsoll/models/team/layers.h"

#include <algorithm>
#include <cmath>

#include "plimsoll/ops/tensor/arguments.h"
#include "plimsoll/ops/tensor/dtype.h"

namespace plimsoll::models {

StepNorm step_norm(const nn::NormParameters& affine, const ops::NormOptions& options) {
  return {.weight = affine.weight,
          .bias = affine.bias,
          .kind = options.kind,
          .zero_centered = options.zero_centered,
          .epsilon = options.epsilon};
}

StepProduct StepLayers::product(const at::Tensor& weight, const at::Tensor& bias, ops::LinearState& state) const {
  if (weight.scalar_type() != dtype_) return {};
  const std::optional<ops::WeightOperands> packed = state.weight_source.packed(weight);
  if (!packed) return {};
  return {.weight = packed->operands.output, .packed = packed->packed, .bias = ops::as_fp32(bias)};
}

StepProduct StepLayers::product(const at::Tensor& weight, const at::Tensor& bias,
                                const nn::ScaledLayer::Product& of) const {
  StepProduct result = product(weight, bias, *of.state);
  if (const nn::LoraImpl* lora = of.adapters(); lora != nullptr) {
    result.adapters.push_back({lora, 0, rows_});
    return result;
  }
  for (const auto& [adapters, first_row, rows] : adapted_) {
    const nn::LoraImpl* lora = adapters->find(*of.state);
    if (lora != nullptr) result.adapters.push_back({lora, first_row, rows});
  }
  return result;
}

StepProduct StepLayers::product(const nn::Linear& layer) const {
  return product(layer->weight.joined(), layer->bias.joined(), layer->products().front());
}

StepLayer StepLayers::attention(const nn::LayerNormLinear& in, const nn::DotProductAttention& core,
                                const nn::Linear& out) const {
  const double scale = core->options.softmax_scale;
  const int64_t channels = core->kv_channels;
  const format::Format format = ops::format_of(dtype_, "step");
  StepAttention part{
      .in = product(in->weight.joined(), in->bias.joined(), in->products().front()),
      .call = {.shape = {.heads = core->num_attention_heads,
                         .groups = core->options.num_gqa_groups,
                         .queries = 1,
                         .channels = channels,
                         .value_channels = channels},
               .rules = {.scale = static_cast<float>(scale > 0 ? scale : 1 / std::sqrt(static_cast<double>(channels))),
                         .causal = kernels::Causal::kBottomRight,
                         .window = core->options.window},
               .format = format,
               .cache_format = format},
      .out = product(out)};
  const ops::NormOptions norm{
      .kind = in->options.normalization, .zero_centered = in->options.zero_centered_gamma, .epsilon = in->options.eps};
  return {.norm = step_norm(in->layer_norm, norm), .part = std::move(part)};
}

StepLayer StepLayers::feed_forward(const nn::LayerNormMlp& layer) const {
  const ops::NormOptions norm{.kind = layer->options.normalization,
                              .zero_centered = layer->options.zero_centered_gamma,
                              .epsilon = layer->options.eps};
  const ops::MlpWeights& weights = layer->weights;
  return {.norm = step_norm(layer->layer_norm, norm),
          .part = StepFeedForward{.up = product(weights.fc1_weight, weights.fc1_bias, layer->products()[0]),
                                  .activation = layer->activation(),
                                  .down = product(weights.fc2_weight, weights.fc2_bias, layer->products()[1])}};
}

namespace {

// Keys and values in `dtype`, in BF16 or in codes: the step writes no others.
bool holds(nn::KeyValueCache& cache, at::ScalarType dtype) {
  return cache.format() != nn::CacheFormat::kAsGiven || cache.grow(0).key.scalar_type() == dtype;
}

}  // namespace

bool may_follow(TokenCache& cache, const at::Tensor& tokens, at::ScalarType dtype) {
  const bool one_each = tokens.dim() == 2 && tokens.size(1) == 1 && tokens.scalar_type() == at::kLong;
  if (!one_each || tokens.size(0) > kMostStepRows || cache.length() == 0 || cache.length() >= cache.capacity()) {
    return false;
  }
  nn::KeyValueCache& layer = cache.layer(0);
  return !layer.pages().defined() && layer.grow(0).key.size(0) == tokens.size(0) && holds(layer, dtype);
}

void extend(TokenCache& cache, TeamStep& step) {
  if (cache.lengths().defined()) step.lengths = {.before = cache.lengths(), .after = cache.lengths() + 1};
  size_t layer = 0;
  for (StepLayer& each : step.layers) {
    auto* attention = std::get_if<StepAttention>(&each.part);
    if (attention == nullptr) continue;
    attention->call.shape.batch = step.tokens.size(0);
    attention->extend(cache.layer(layer++), step.lengths);
  }
  if (step.lengths.after.defined()) cache.set_lengths(step.lengths.after);
}

void extend(std::span<const TextCache> texts, TeamStep& step) {
  step.texts.first_row = {0};
  for (const auto& [cache, rows] : texts) {
    for (size_t layer = 0; layer < cache.layers(); ++layer) cache.layer(layer).grow(rows);
    step.texts.first_row.push_back(step.texts.first_row.back() + rows);
    step.texts.lengths.push_back(cache.length());
    step.texts.numbers.push_back(cache.layer(0).pages().const_data_ptr<int32_t>());
  }
  size_t layer = 0;
  for (StepLayer& each : step.layers) {
    auto* attention = std::get_if<StepAttention>(&each.part);
    if (attention != nullptr) attention->extend(texts.front().cache.layer(layer++), step.texts);
  }
}

bool share_pages(std::span<const TextCache> texts, at::ScalarType dtype) {
  return std::ranges::all_of(texts, [&](const TextCache& text) {
    nn::KeyValueCache &own = text.cache.layer(0), &first = texts.front().cache.layer(0);
    return own.pages().defined() && own.grow(0).key.is_alias_of(first.grow(0).key) && holds(own, dtype);
  });
}

}  // namespace plimsoll::models
