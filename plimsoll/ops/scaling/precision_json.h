// Formats under the recipe `auto` as JSON: what a checkpoint keeps of them, and what a log or a user sees.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "plimsoll/ops/scaling/precision_controller.h"

namespace plimsoll::ops {

// {"formats": of the ladder, "layers": [{"layer", "products": [...]}], "multiply_adds": [by rung]}: all that a later run needs to
// decide the same.
nlohmann::json state_of(const PrecisionController& precision);
// next_step: the first one to come. Throws nlohmann::json::exception where the state is not one, c10::ValueError where it
// is that of another ladder; the controller stays as it is then.
void restore(PrecisionController& precision, int64_t next_step, const nlohmann::json& state);

// {"layer", "product", "from", "to", "reason", "operand", "error", "bound"}.
nlohmann::json to_json(const PrecisionChange& change);
// {"layer/output": {"format", "multiply_adds", "mean_error", "load", "saturated", "flushed", "headroom_bits"}} of the
// products that the last step computed.
nlohmann::json products_json(const std::vector<std::string>& formats, const std::vector<LayerPrecision>& layers);
// {"formats": of the ladder, "share": of the multiply-adds in each}.
nlohmann::json shares_json(const std::vector<std::string>& formats, const std::vector<double>& multiply_adds);

// Names of the ladder's formats, the narrowest first.
std::vector<std::string> formats_of(const PrecisionController& precision);

}  // namespace plimsoll::ops
