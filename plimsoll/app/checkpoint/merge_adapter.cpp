#include "plimsoll/app/checkpoint/merge_adapter.h"

#include <ATen/core/grad_mode.h>

#include "plimsoll/app/new_directory.h"
#include "plimsoll/app/process/interrupt.h"
#include "plimsoll/app/text/text_model.h"
#include "plimsoll/models/lora/lora.h"

namespace plimsoll::app {

void merge_adapter(const MergeOptions& options) {
  const at::NoGradGuard no_grad;
  const InterruptScope interrupt;
  NewDirectory directory(options.out);
  const TextModel base = load_model({.path = options.model, .adapter = options.adapter, .warn = options.warn});
  interrupt.stop_if_requested("merge");
  models::merge_lora(*base.model, options.warn);
  interrupt.stop_if_requested("merge");
  models::save(*base.model, directory.partial(), {.source = base.directory});
  interrupt.stop_if_requested("merge");
  directory.commit();
}

}  // namespace plimsoll::app
