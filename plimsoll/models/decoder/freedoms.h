// The freedoms of a decoder, and of a Gpt, which is one of its kinds. Where several parts are one parameter, each has a
// name of its own: "blocks.0.self_attention.layernorm_qkv.query_weight", "blocks.0.layernorm_mlp.up_weight".
#pragma once

#include <torch/nn/module.h>

#include <map>
#include <string>

#include "plimsoll/models/decoder/config.h"
#include "plimsoll/models/freedoms.h"

namespace plimsoll::models {

// A tied head reads the embedding before it is scaled: it has to be stored by itself once `residual` is not 0.
Freedoms decoder_freedoms(const DecoderConfig& config);

// The parameters by the names of Freedoms::weights. They share storage with the model.
std::map<std::string, at::Tensor> decoder_weights(const torch::nn::Module& model, const DecoderConfig& config);

// Bounds that no input can exceed: after a norm a token's length is at most sqrt(dim) before the norm's weight and
// bias. embedding_factor: of the token's vector.
Amaxes decoder_worst_case(const torch::nn::Module& model, const DecoderConfig& config, double embedding_factor);

// The same of another model of these kinds: parameters of `from`, multiplied, into `to`. An embedding that a tied head
// has read becomes the head's own where `to` has one.
void copy_multiplied(const DecoderConfig& config, const torch::nn::Module& from, const Exponents& exponents,
                     torch::nn::Module& to);
// Multiplies the parameters of `from` where they stand and gives them to `to`; `from` has none after that.
void move_multiplied(const DecoderConfig& config, torch::nn::Module& from, const Exponents& exponents,
                     torch::nn::Module& to);

}  // namespace plimsoll::models
