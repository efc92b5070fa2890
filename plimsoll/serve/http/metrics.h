// The engine's counts as Prometheus reads them.
#pragma once

#include <string>

#include "plimsoll/serve/engine.h"

namespace plimsoll::serve {

std::string metrics_text(const EngineStats& stats);

}  // namespace plimsoll::serve
