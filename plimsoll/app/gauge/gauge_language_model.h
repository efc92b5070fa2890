// gauge_checkpoint of a decoder-only model.
#pragma once

#include "plimsoll/app/gauge/gauge.h"

namespace plimsoll::app {

// Writes a Hugging Face directory, of a run whose model began as one, too; of another run a run whose one checkpoint has the
// model alone, with the recipe fp16.
nlohmann::json gauge_language_model(const GaugeOptions& options);

}  // namespace plimsoll::app
