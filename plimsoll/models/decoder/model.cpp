#include "plimsoll/models/decoder/model.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/where.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>

#include "plimsoll/models/decoder/config_json.h"
#include "plimsoll/models/decoder/padding.h"
#include "plimsoll/models/decoder/traits.h"
#include "plimsoll/nn/precision.h"
#include "plimsoll/nn/report_values.h"
#include "plimsoll/nn/undrawn.h"
#include "plimsoll/ops/embedding/embedding.h"
#include "plimsoll/runtime/unexpected.h"

namespace plimsoll::models {
namespace {

at::Tensor llama3_frequencies(const DecoderRotary& rotary, const at::Tensor& unscaled) {
  const auto context = static_cast<double>(rotary.original_context);
  const double low = rotary.low_freq_factor, high = rotary.high_freq_factor;
  const at::Tensor wavelength = 2 * std::numbers::pi / unscaled;
  const at::Tensor slow = unscaled / rotary.factor;
  const at::Tensor share = (context / wavelength - low) / (high - low);
  const at::Tensor between = (1 - share) * unscaled / rotary.factor + share * unscaled;
  const at::Tensor scaled = at::where(wavelength > context / low, slow, between);
  return at::where(wavelength < context / high, unscaled, scaled);
}

// Angle of a step from one position to the next, for each pair of channels, in FP32: [rotated / 2].
at::Tensor inverse_frequencies(const DecoderRotary& rotary, int64_t rotated) {
  const at::Tensor exponents = at::arange(0, rotated, 2, at::kFloat) / static_cast<double>(rotated);
  const at::Tensor unscaled = 1.0 / at::pow(rotary.theta, exponents);
  switch (rotary.scaling) {
    case RotaryScaling::kDefault:
      return unscaled;
    case RotaryScaling::kLinear:
      return unscaled / rotary.factor;
    case RotaryScaling::kLlama3:
      return llama3_frequencies(rotary, unscaled);
  }
  runtime::unexpected("decoder: rotary scaling", static_cast<int>(rotary.scaling));
}
// [count, rotated], the same angle for both channels of a pair.
at::Tensor angles_of(const DecoderRotary& rotary, int64_t rotated, int64_t first, int64_t count) {
  const at::Tensor half = at::outer(at::arange(first, first + count, at::kFloat), inverse_frequencies(rotary, rotated));
  return at::cat({half, half}, 1);
}

bool writes_stream(const std::string& name) { return name.ends_with("proj.weight") || name.ends_with("fc2_weight"); }

}  // namespace

DecoderImpl::DecoderImpl(const DecoderConfig& settings) : config(settings) {
  check(config);
  DecoderImpl::reset();
}

void DecoderImpl::reset() {
  token_embedding = register_module("token_embedding", nn::Embedding(config.vocabulary, config.dim));
  if (config.learned_positions) {
    position_embedding = register_module("position_embedding", nn::Embedding(config.context, config.dim));
  }
  blocks = register_module("blocks", torch::nn::ModuleList());
  for (const Reach reach : config.reaches) blocks->push_back(DecoderBlock(config, reach));
  norm = register_module("norm", nn::Norm(config.dim, ops::NormOptions{.kind = config.normalization,
                                                                       .zero_centered = config.zero_centered_norms,
                                                                       .epsilon = config.norm_epsilon}));
  if (config.ties_head) {
    const std::shared_ptr<ops::LinearState> before = tied_head_;  // of a clone's original
    tied_head_ = LanguageHead::tied_state();
    if (before != nullptr) tied_head_->weight_source.hold(before->weight_source.held());
  } else {
    head = register_module(
        "head", nn::Linear(config.dim, config.vocabulary, nn::LinearOptions{.bias = false, .high_precision = true}));
  }
  nn::name_products(*this);
  reset_parameters();
}

void DecoderImpl::reset_parameters(std::optional<at::Generator> generator) {
  if (nn::UndrawnParameters::are_wanted()) return;
  const at::NoGradGuard no_grad;
  const bool shrinks = traits_of(config.family).shrinks_what_writes_stream;
  const double less = shrinks ? std::sqrt(2.0 * static_cast<double>(config.layers)) : 1;
  for (const auto& parameter : named_parameters()) {
    at::Tensor tensor = parameter.value();
    if (tensor.dim() == 2) {
      tensor.normal_(0, config.initializer_range / (writes_stream(parameter.key()) ? less : 1), generator);
    } else if (parameter.key().ends_with("bias")) {
      tensor.zero_();
    } else {
      tensor.fill_(config.zero_centered_norms ? 0 : 1);
    }
  }
}

double DecoderImpl::embedding_factor() const {
  if (!config.scales_embedding) return 1;
  // The factor has the dtype of the weights, as transformers has it.
  const double factor = std::sqrt(static_cast<double>(config.dim));
  return at::scalar_tensor(factor, token_embedding->weight.scalar_type()).item<double>();
}

at::Tensor DecoderImpl::embed(const at::Tensor& tokens, int64_t first_position) const {
  const at::Tensor embedded =
      ops::embedding({.tokens = tokens,
                      .token_weight = token_embedding->weight,
                      .position_weight = config.learned_positions ? position_embedding->weight : at::Tensor(),
                      .first_position = first_position},
                     nn::scope_dtype().value_or(token_embedding->weight.scalar_type()));
  return config.scales_embedding ? embedded * embedding_factor() : embedded;
}

at::Tensor DecoderImpl::angles(Reach reach, int64_t first, int64_t count) const {
  return angles_of(config.rotary_of(reach), config.rotated(), first, count);
}

at::Tensor DecoderImpl::normalised(const at::Tensor& tokens, std::optional<bool> is_first_microbatch,
                                   TokenCache* cache) {
  const int64_t first = cache == nullptr ? 0 : cache->length();
  TORCH_CHECK(tokens.dim() == 2 && first + tokens.size(1) <= config.context,
              "decoder: expected tokens [batch, seq], at most ", config.context - first, " of them, got ",
              tokens.sizes());
  nn::ResidualStream stream{.hidden = at::dropout(embed(tokens, first), config.embedding_dropout, is_training())};
  std::array<at::Tensor, 2> angles;  // by Reach
  for (size_t layer = 0; layer < blocks->size(); ++layer) {
    auto& block = blocks->at<DecoderBlockImpl>(layer);
    at::Tensor& turns = angles[static_cast<size_t>(block.reach)];
    if (config.rotated() > 0 && !turns.defined()) {
      turns = this->angles(block.reach, first, tokens.size(1));
    }
    stream = block.advance(stream, {.angles = turns,
                                    .is_first_microbatch = is_first_microbatch,
                                    .cache = cache == nullptr ? nullptr : &cache->layer(layer)});
  }
  const ops::NormOutput normed = norm->forward(stream.hidden, stream.residual);
  nn::report_between("norm", "stream", stream.residual.defined() ? normed.sum : stream.hidden);
  return normed.output;
}

LanguageHead DecoderImpl::reader() const {
  if (!config.ties_head) return {.own = head};
  return {.embedding = token_embedding->weight, .tied = tied_head_};
}

at::Tensor DecoderImpl::forward(const at::Tensor& tokens, const at::Tensor& attention_mask,
                                std::optional<bool> is_first_microbatch) {
  const TokensFirst rows(tokens, attention_mask);
  const at::Tensor hidden = normalised(rows.gathered(tokens), is_first_microbatch, nullptr);
  return rows.scattered(reader().logits(hidden, is_first_microbatch).to(at::kFloat));
}

at::Tensor DecoderImpl::loss(const at::Tensor& tokens, const at::Tensor& targets,
                             std::optional<bool> is_first_microbatch) {
  return loss(tokens, targets, {}, is_first_microbatch);
}

at::Tensor DecoderImpl::loss(const at::Tensor& tokens, const at::Tensor& targets, const at::Tensor& attention_mask,
                             std::optional<bool> is_first_microbatch) {
  const TokensFirst rows(tokens, attention_mask);
  const at::Tensor hidden = normalised(rows.gathered(tokens), is_first_microbatch, nullptr);
  return reader().loss(hidden, rows.gathered(targets), is_first_microbatch);
}

at::Tensor DecoderImpl::extend(const at::Tensor& tokens, TokenCache& cache) {
  TORCH_CHECK(cache.layers() == blocks->size(), "decoder: expected a cache of ", blocks->size(), " layers, got ",
              cache.layers());
  const at::NoGradGuard no_grad;
  if (at::Tensor logits = step(tokens, cache); logits.defined()) return logits;
  const bool is_first = cache.length() == 0;
  return reader().logits(normalised(tokens, is_first, &cache), is_first).to(at::kFloat);
}

nlohmann::json DecoderImpl::shape() const {
  nlohmann::json shape = decoder_config_json(config);
  shape["family"] = "decoder";
  return shape;
}

std::vector<LanguageModel::Unit> DecoderImpl::units() {
  std::vector<Unit> units;
  for (const auto& block : *blocks) units.push_back({block, &block->as<DecoderBlockImpl>()->hooks});
  return units;
}

void DecoderImpl::checkpoint_activations(bool enabled) {
  for (size_t layer = 0; layer < blocks->size(); ++layer) {
    blocks->at<DecoderBlockImpl>(layer).checkpoint_activations = enabled;
  }
}

}  // namespace plimsoll::models
