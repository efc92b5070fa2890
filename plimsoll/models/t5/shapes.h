// The parameters of a T5 by name, without the T5: what a file must hold before a model is made for it.
#pragma once

#include "plimsoll/models/t5/config.h"
#include "plimsoll/models/tensors.h"

namespace plimsoll::models {

// Shapes of T5ForConditionalGenerationImpl::named_parameters(). As many entries as the model has parameters: bound the
// numbers of layers first.
ParameterShapes t5_parameter_shapes(const T5Config& config);

}  // namespace plimsoll::models
