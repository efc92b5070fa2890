// The freedoms of a T5 whose two stacks share one embedding and one epsilon, as Hugging Face's checkpoints do.
#pragma once

#include "plimsoll/gauge/freedoms.h"
#include "plimsoll/models/t5/config.h"

namespace plimsoll::gauge {

// A tied head reads the embedding before it is scaled: it has to be stored by itself once `residual` is not 0.
Freedoms t5_freedoms(const models::T5Config& config);

}  // namespace plimsoll::gauge
