// Formats that a run under the recipe `auto` chooses: their part of checkpoints and of the log.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "plimsoll/app/train/train_options.h"
#include "plimsoll/ops/scaling/precision_controller.h"

namespace plimsoll::app {

// Formats of a step, and how they changed at its end.
struct StepPrecision {
  std::vector<std::string> formats;        // of the ladder, the narrowest first
  std::vector<double> multiply_adds = {};  // in each
  std::vector<ops::PrecisionChange> changes = {};
  std::vector<ops::LayerPrecision> layers = {};  // in the steps that log every operand
};

// nullptr where the recipe is another than `auto`.
std::shared_ptr<ops::PrecisionController> make_precision(const TrainOptions& options);

// From a checkpoint's ops::state_of. next_step: the first one to come. Throws Error where the state is not one.
void restore(ops::PrecisionController& precision, int64_t next_step, const nlohmann::json& state);

// In the log: ops::shares_json of the step, "changes": [...], "products": {"layer/output": ...}.
nlohmann::json to_json(const StepPrecision& precision);

}  // namespace plimsoll::app
