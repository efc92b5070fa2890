// gauge_checkpoint of a decoder-only model.
#pragma once

#include "plimsoll/app/gauge/gauge.h"

namespace plimsoll::app {

// Writes what the model came from: a Hugging Face directory, or a run whose one checkpoint has the model alone, with the
// recipe fp16.
nlohmann::json gauge_language_model(const GaugeOptions& options);

}  // namespace plimsoll::app
