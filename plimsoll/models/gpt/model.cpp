#include "plimsoll/models/gpt/model.h"

#include <ATen/ops/dropout.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "plimsoll/models/decoder/freedoms.h"
#include "plimsoll/nn/precision.h"
#include "plimsoll/nn/report_values.h"
#include "plimsoll/nn/undrawn.h"
#include "plimsoll/ops/embedding/embedding.h"

namespace plimsoll::models {
namespace {

// Source: Radford et al. 2019 and the code published with it.
constexpr double kInitialDeviation = 0.02;

// The decoder whose parameters have the same names and do the same.
DecoderConfig as_decoder(const GptConfig& config) {
  DecoderConfig decoder;
  decoder.vocabulary = config.vocabulary;
  decoder.layers = config.layers;
  decoder.dim = config.dim;
  decoder.heads = decoder.groups = config.heads;
  decoder.head_dim = config.dim / config.heads;
  decoder.ffn_dim = 4 * config.dim;
  decoder.context = config.context;
  decoder.normalization = config.normalization;
  decoder.norm_epsilon = config.norm_epsilon;
  decoder.qkv_bias = decoder.output_bias = decoder.mlp_bias = true;
  decoder.activation = kernels::Activation::kGelu;
  decoder.ties_head = config.tie_embeddings;
  decoder.learned_positions = true;
  return decoder;
}

Gpt undrawn_for(GptConfig config, const Exponents& exponents) {
  config.norm_epsilon = std::ldexp(config.norm_epsilon, 2 * exponents.residual);
  config.tie_embeddings = config.tie_embeddings && exponents.residual == 0;
  const nn::UndrawnParameters undrawn;
  Gpt result(config);
  result->eval();
  return result;
}

}  // namespace

GptImpl::GptImpl(const GptConfig& settings) : config(settings) {
  TORCH_CHECK_VALUE(config.layers >= 0 && config.vocabulary > 0 && config.context > 0,
                    "gpt: expected layers >= 0, vocabulary > 0 and context > 0, got ", config.layers, ", ",
                    config.vocabulary, " and ", config.context);
  TORCH_CHECK_VALUE(config.dim > 0 && config.heads > 0 && config.dim % config.heads == 0,
                    "gpt: expected a number of heads that divides dim ", config.dim, ", got ", config.heads);
  // The dropout of attention, too.
  TORCH_CHECK_VALUE(config.dropout >= 0 && config.dropout < 1, "gpt: expected dropout in [0, 1), got ", config.dropout);
  GptImpl::reset();
}

void GptImpl::reset() {
  token_embedding = register_module("token_embedding", nn::Embedding(config.vocabulary, config.dim));
  position_embedding = register_module("position_embedding", nn::Embedding(config.context, config.dim));
  blocks = register_module("blocks", torch::nn::ModuleList());
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    blocks->push_back(nn::TransformerLayer(config.dim, 4 * config.dim, config.heads,
                                           nn::TransformerLayerOptions{.layernorm_epsilon = config.norm_epsilon,
                                                                       .hidden_dropout = config.dropout,
                                                                       .attention_dropout = config.dropout,
                                                                       .normalization = config.normalization,
                                                                       .fuse_qkv_params = true,
                                                                       .qkv_weight_interleaved = false,
                                                                       .attn_input_format = nn::Layout::kBshd}));
  }
  norm = register_module(
      "norm", nn::Norm(config.dim, ops::NormOptions{.kind = config.normalization, .epsilon = config.norm_epsilon}));
  make_head(config.tie_embeddings);
  nn::name_products(*this);
  reset_parameters();
}

void GptImpl::reset_parameters(std::optional<at::Generator> generator) {
  draw_parameters({.deviation = kInitialDeviation,
                   .stream_deviation = kInitialDeviation / std::sqrt(2.0 * static_cast<double>(config.layers))},
                  generator);
}

at::Tensor GptImpl::normalised(const at::Tensor& tokens, std::optional<bool> is_first_microbatch, TokenCache* cache) {
  const at::Tensor& table = token_embedding->weight;
  const at::ScalarType dtype = nn::scope_dtype(table.device().type()).value_or(table.scalar_type());
  const at::Tensor embedded = ops::embedding({.tokens = tokens,
                                              .token_weight = table,
                                              .position_weight = position_embedding->weight,
                                              .first_position = cache == nullptr ? 0 : cache->length()},
                                             dtype);
  nn::ResidualStream stream{.hidden = at::dropout(embedded, config.dropout, is_training())};
  for (size_t layer = 0; layer < blocks->size(); ++layer) {
    stream = blocks->at<nn::TransformerLayerImpl>(layer).advance(
        stream,
        {.is_first_microbatch = is_first_microbatch, .cache = cache == nullptr ? nullptr : &cache->layer(layer)});
  }
  const ops::NormOutput normed = norm->forward(stream.hidden, stream.residual);
  nn::report_between("norm", "stream", stream.residual.defined() ? normed.sum : stream.hidden);
  nn::report_between("head", "input", normed.output);
  return normed.output;
}

at::Tensor GptImpl::forward(const at::Tensor& tokens, std::optional<bool> is_first_microbatch) {
  return reader().logits(normalised(tokens, is_first_microbatch, nullptr), is_first_microbatch).to(at::kFloat);
}

at::Tensor GptImpl::loss(const at::Tensor& tokens, const at::Tensor& targets, std::optional<bool> is_first_microbatch) {
  return reader().loss(normalised(tokens, is_first_microbatch, nullptr), targets, is_first_microbatch);
}

nlohmann::json GptImpl::shape() const { return config; }

Freedoms GptImpl::freedoms() const { return decoder_freedoms(as_decoder(config)); }
std::map<std::string, at::Tensor> GptImpl::weights_with_freedom() const {
  return decoder_weights(*this, as_decoder(config));
}
Amaxes GptImpl::worst_case_amaxes() const { return decoder_worst_case(*this, as_decoder(config), 1); }

std::shared_ptr<LanguageModel> GptImpl::multiplied(const Exponents& exponents,
                                                   std::optional<at::ScalarType> dtype) const {
  Gpt result = undrawn_for(config, exponents);
  if (dtype) result->to(*dtype);
  copy_multiplied(as_decoder(config), *this, exponents, *result);
  return result.ptr();
}

std::shared_ptr<LanguageModel> GptImpl::take_multiplied(const Exponents& exponents) {
  Gpt result = undrawn_for(config, exponents);
  move_multiplied(as_decoder(config), *this, exponents, *result);
  return result.ptr();
}

}  // namespace plimsoll::models
