// The parameters of a GPT by name, without the GPT: what a file must hold before a model is made for it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "plimsoll/models/gpt/model.h"

namespace plimsoll::models {

using ParameterShapes = std::map<std::string, std::vector<int64_t>>;

// Those of GptImpl::named_parameters(). As many entries as the model has parameters: bound config.layers first.
ParameterShapes gpt_parameter_shapes(const GptConfig& config);

}  // namespace plimsoll::models
