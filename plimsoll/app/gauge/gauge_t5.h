// gauge_checkpoint of a Hugging Face directory of a T5.
#pragma once

#include "plimsoll/app/gauge/gauge.h"

namespace plimsoll::app {

nlohmann::json gauge_t5(const GaugeOptions& options);

}  // namespace plimsoll::app
