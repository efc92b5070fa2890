#include "plimsoll/models/decoder/model.h"

#include <ATen/ops/dropout.h>
#include <ATen/ops/scalar_tensor.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "plimsoll/models/computed_dtype.h"
#include "plimsoll/models/decoder/config_json.h"
#include "plimsoll/models/decoder/traits.h"
#include "plimsoll/models/padding.h"
#include "plimsoll/nn/report_values.h"
#include "plimsoll/ops/embedding/embedding.h"

namespace plimsoll::models {
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
  rotary_.clear();
  if (!config.learned_positions) {
    for (const Reach reach : {Reach::kFull, Reach::kSliding})
      rotary_.emplace_back(config.head_dim, config.rotary_of(reach));
  }
  norm = register_module("norm", nn::Norm(config.dim, ops::NormOptions{.kind = config.normalization,
                                                                       .zero_centered = config.zero_centered_norms,
                                                                       .epsilon = config.norm_epsilon}));
  make_head(config.ties_head);
  nn::name_products(*this);
  nn::keep_in_high_precision(*this, config.high_precision);
  reset_parameters();
}

void DecoderImpl::reset_parameters(std::optional<at::Generator> generator) {
  const bool shrinks = traits_of(config.family).shrinks_what_writes_stream;
  draw_parameters({.deviation = config.initializer_range,
                   .stream_deviation =
                       config.initializer_range / (shrinks ? std::sqrt(2.0 * static_cast<double>(config.layers)) : 1),
                   .norm = config.zero_centered_norms ? 0.0 : 1.0},
                  generator);
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
                     computed_dtype(token_embedding->weight));
  return config.scales_embedding ? embedded * embedding_factor() : embedded;
}

at::Tensor DecoderImpl::embed_at(const at::Tensor& tokens, const at::Tensor& positions) const {
  if (!config.learned_positions) return embed(tokens, 0);
  const auto vectors = [](const at::Tensor& ids, const at::Tensor& weight) {
    return ops::embedding({.tokens = ids, .token_weight = weight}, at::kFloat);
  };
  const at::Tensor sum = vectors(tokens, token_embedding->weight) + vectors(positions, position_embedding->weight);
  const at::Tensor embedded = sum.to(computed_dtype(token_embedding->weight));
  return config.scales_embedding ? embedded * embedding_factor() : embedded;
}

at::Tensor DecoderImpl::normalised(const at::Tensor& tokens, std::optional<bool> is_first_microbatch,
                                   TokenCache* cache) {
  const int64_t first = cache == nullptr ? 0 : cache->length();
  TORCH_CHECK(tokens.dim() == 2 && first + tokens.size(1) <= config.context,
              "decoder: expected tokens [batch, seq], at most ", config.context - first, " of them, got ",
              tokens.sizes());
  const std::array<ops::RotaryTurns, 2> turns = this->turns(first, tokens.size(1));
  return run_blocks(embed(tokens, first), [&](size_t layer, Reach reach) {
    return DecoderBlockInput{.turns = turns[static_cast<size_t>(reach)],
                             .is_first_microbatch = is_first_microbatch,
                             .cache = cache == nullptr ? nullptr : &cache->layer(layer)};
  });
}

at::Tensor DecoderImpl::packed(const PackedTexts& texts, std::optional<bool> is_first_microbatch) {
  for (const int64_t length : texts.lengths) {
    TORCH_CHECK(length > 0 && length <= config.context, "decoder: expected texts of 1 to ", config.context,
                " tokens, got ", length);
  }
  const at::Tensor positions = positions_of(texts.lengths);
  TORCH_CHECK(texts.tokens.sizes() == positions.sizes() && texts.targets.sizes() == positions.sizes(),
              "decoder: expected tokens and targets ", positions.sizes(), ", got ", texts.tokens.sizes(), " and ",
              texts.targets.sizes());
  const std::array<ops::RotaryTurns, 2> turns = this->turns(positions);
  return run_blocks(embed_at(texts.tokens, positions), [&](size_t, Reach reach) {
    return DecoderBlockInput{.turns = turns[static_cast<size_t>(reach)],
                             .is_first_microbatch = is_first_microbatch,
                             .segments = texts.lengths};
  });
}

nn::ResidualStream DecoderImpl::first_stream(const at::Tensor& tokens) const {
  TORCH_CHECK(tokens.dim() == 2 && tokens.size(1) <= config.context, "decoder: expected tokens [batch, seq], at most ",
              config.context, " of them, got ", tokens.sizes());
  return {.hidden = at::dropout(embed(tokens, 0), config.embedding_dropout, is_training())};
}

nn::ResidualStream DecoderImpl::run_block(size_t layer, nn::ResidualStream stream) {
  auto& block = blocks->at<DecoderBlockImpl>(layer);
  const std::array<ops::RotaryTurns, 2> turns = this->turns(int64_t{0}, stream.hidden.size(1));
  return block.advance(std::move(stream), {.turns = turns[static_cast<size_t>(block.reach)]});
}

at::Tensor DecoderImpl::run_blocks(const at::Tensor& embedded, const LayerInput& input) {
  nn::ResidualStream stream{.hidden = at::dropout(embedded, config.embedding_dropout, is_training())};
  for (size_t layer = 0; layer < blocks->size(); ++layer) {
    auto& block = blocks->at<DecoderBlockImpl>(layer);
    stream = block.advance(stream, input(layer, block.reach));
  }
  const ops::NormOutput normed = norm->forward(stream.hidden, stream.residual);
  nn::report_between("norm", "stream", stream.residual.defined() ? normed.sum : stream.hidden);
  nn::report_between("head", "input", normed.output);
  return normed.output;
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

at::Tensor DecoderImpl::packed_loss(const PackedTexts& texts, std::optional<bool> is_first_microbatch) {
  const at::Tensor hidden = packed(texts, is_first_microbatch).squeeze(0);
  return reader().loss(hidden, texts.targets.view(-1), is_first_microbatch);
}

nlohmann::json DecoderImpl::shape() const {
  nlohmann::json shape = decoder_config_json(config);
  shape["family"] = "decoder";
  return shape;
}

}  // namespace plimsoll::models
