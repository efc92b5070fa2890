// The parameters of a GPT by name, without the GPT: what a file must hold before a model is made for it.
#pragma once

#include "plimsoll/models/gpt/config.h"
#include "plimsoll/models/tensors.h"

namespace plimsoll::models {

// Shapes of GptImpl::named_parameters(). As many entries as the model has parameters: bound config.layers first.
ParameterShapes gpt_parameter_shapes(const GptConfig& config);

}  // namespace plimsoll::models
