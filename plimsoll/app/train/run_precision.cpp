#include "plimsoll/app/train/run_precision.h"

#include "plimsoll/app/error.h"
#include "plimsoll/ops/scaling/precision_json.h"

namespace plimsoll::app {

using nlohmann::json;

std::shared_ptr<ops::PrecisionController> make_precision(const TrainOptions& options) {
  if (!options.recipe.automatic) return nullptr;
  return std::make_shared<ops::PrecisionController>(*options.recipe.automatic);
}

void restore(ops::PrecisionController& precision, int64_t next_step, const json& state) {
  try {
    ops::restore(precision, next_step, state);
  } catch (const json::exception&) {
    fail("checkpoint: expected the formats of recipe auto in state.json, got {}", state.is_null() ? "none" : "others");
  }
}

json to_json(const StepPrecision& precision) {
  json line = ops::shares_json(precision.formats, precision.multiply_adds);
  for (const ops::PrecisionChange& change : precision.changes) line["changes"].push_back(ops::to_json(change));
  if (!precision.layers.empty()) line["products"] = ops::products_json(precision.formats, precision.layers);
  return line;
}

}  // namespace plimsoll::app
