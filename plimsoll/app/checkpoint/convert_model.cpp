#include "plimsoll/app/checkpoint/convert_model.h"

#include <ATen/core/grad_mode.h>

#include "plimsoll/app/error.h"
#include "plimsoll/app/new_directory.h"
#include "plimsoll/app/process/interrupt.h"
#include "plimsoll/app/text/text_model.h"
#include "plimsoll/app/train/trained_model.h"

namespace plimsoll::app {

void convert_model(const ConvertOptions& options) {
  if (models::code_kind(options.dtype)) {
    refuse("--dtype: expected stored, fp32, bf16 or fp16, got {}",
           recipe::name_of(models::kWeightDtypes, options.dtype));
  }
  const at::NoGradGuard no_grad;
  const InterruptScope interrupt;
  NewDirectory directory(options.out);
  std::filesystem::path source = options.model;
  if (is_run(options.model)) {
    if (!std::filesystem::exists(directory_of_run(options.model) / "config.json")) {
      refuse(
          "{}: expected a run that began with a Hugging Face directory, got one of a new model of bytes, of which plimsoll "
          "consolidate makes one file",
          options.model.native());
    }
    const TextModel run = load_model({.path = options.model, .warn = options.warn});
    models::save(*run.model, directory.partial(), {.source = run.directory});
    interrupt.stop_if_requested("convert");
    source = directory.partial();
  }
  const models::LoadedModel loaded =
      models::load(source, {.dtype = options.dtype, .coded = models::CodedWeights::kDecoded, .warn = options.warn});
  interrupt.stop_if_requested("convert");
  models::save(*loaded.model, directory.partial(), {.source = source});
  interrupt.stop_if_requested("convert");
  if (options.warn && !std::filesystem::exists(directory.partial() / "tokenizer.json")) {
    options.warn(
        io::compose("{} has no tokenizer.json, and so {} has none", options.model.native(), options.out.native()));
  }
  directory.commit();
}

}  // namespace plimsoll::app
