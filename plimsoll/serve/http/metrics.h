// The engine's counts as Prometheus reads them, and what its watch has seen.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "plimsoll/serve/engine.h"

namespace plimsoll::serve {

std::string metrics_text(const Engine& engine);

// {"watch": whether there is one, "layers": [{"name", "format", "headroom_bits", "non_finite"}]}. A headroom is null where no
// result was finite or all were zero.
nlohmann::json headroom_json(const Engine& engine);

}  // namespace plimsoll::serve
