// gauge_checkpoint of a language model that was trained here.
#pragma once

#include "plimsoll/app/gauge.h"

namespace plimsoll::app {

// Writes a run whose one checkpoint has the model alone, with the recipe fp16.
nlohmann::json gauge_language_model(const GaugeOptions& options);

}  // namespace plimsoll::app
