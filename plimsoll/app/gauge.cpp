#include "plimsoll/app/gauge.h"

#include "plimsoll/app/gauge_language_model.h"
#include "plimsoll/app/gauge_t5.h"
#include "plimsoll/io/checkpoint.h"

namespace plimsoll::app {

nlohmann::json gauge_checkpoint(const GaugeOptions& options) {
  const bool is_run =
      std::filesystem::exists(options.model / "manifest.json") || !io::list_checkpoints(options.model).empty();
  return is_run ? gauge_language_model(options) : gauge_t5(options);
}

}  // namespace plimsoll::app
