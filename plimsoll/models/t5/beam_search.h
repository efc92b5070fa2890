// The best of several texts that are written side by side. Ids are those of Hugging Face's generate(num_beams=...).
#pragma once

#include "plimsoll/models/t5/generation.h"

namespace plimsoll::models {

// The best texts of each input, the very best first.
T5Generated beam_search(T5ForConditionalGenerationImpl& model, const T5Encoded& encoded,
                        const T5GenerationOptions& options);

}  // namespace plimsoll::models
