#include "plimsoll/app/gauge.h"

#include "plimsoll/app/gauge_language_model.h"
#include "plimsoll/app/gauge_t5.h"
#include "plimsoll/app/trained_model.h"

namespace plimsoll::app {

nlohmann::json gauge_checkpoint(const GaugeOptions& options) {
  return is_run(options.model) ? gauge_language_model(options) : gauge_t5(options);
}

}  // namespace plimsoll::app
