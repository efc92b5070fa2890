// The freedoms of a T5 whose two stacks share one embedding and one epsilon, as Hugging Face's checkpoints do.
#pragma once

#include "plimsoll/models/freedoms.h"
#include "plimsoll/models/t5/model.h"

namespace plimsoll::models {

// A tied head reads the embedding before it is scaled: it has to be stored by itself once `residual` is not 0.
Freedoms t5_freedoms(const T5Config& config);

// Bounds that no input can exceed: after a norm a token's length is at most sqrt(d_model) before the norm's weight, so
// each product's output is bounded by its rows' lengths. Every value of the same name stays below.
Amaxes worst_case_amaxes(const T5ForConditionalGenerationImpl& model);

}  // namespace plimsoll::models
