#include "plimsoll/app/gauge/gauge.h"

#include "plimsoll/app/error.h"
#include "plimsoll/app/gauge/gauge_language_model.h"
#include "plimsoll/app/gauge/gauge_t5.h"
#include "plimsoll/app/train/trained_model.h"
#include "plimsoll/models/load.h"

namespace plimsoll::app {

nlohmann::json gauge_checkpoint(const GaugeOptions& options) {
  const bool is_decoder = is_run(options.model) || models::is_decoder_directory(options.model);
  if (options.train && !is_decoder) refuse("--train: expected a decoder-only model, got {}", options.model.native());
  if (options.train && options.calibrate.empty()) {
    refuse("--train: expected --calibrate FILE, whose gradients it reads, got none");
  }
  return is_decoder ? gauge_language_model(options) : gauge_t5(options);
}

}  // namespace plimsoll::app
