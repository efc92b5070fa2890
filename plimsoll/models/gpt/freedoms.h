// The freedoms of a Gpt. Where its queries, keys and values are one parameter, each part of it has a name of its own:
// "blocks.0.self_attention.layernorm_qkv.query_weight".
#pragma once

#include <ATen/core/TensorBody.h>

#include <map>
#include <string>

#include "plimsoll/models/freedoms.h"
#include "plimsoll/models/gpt/model.h"

namespace plimsoll::models {

// A tied head reads the embedding before it is scaled: it has to be stored by itself once `residual` is not 0.
Freedoms gpt_freedoms(const GptConfig& config);

// The parameters by the names of Freedoms::weights. They share storage with the model.
std::map<std::string, at::Tensor> gpt_weights(const GptImpl& model);

// Bounds that no input can exceed: after a norm a token's length is at most sqrt(dim) before the norm's weight and
// bias.
Amaxes worst_case_amaxes(const GptImpl& model);

}  // namespace plimsoll::models
