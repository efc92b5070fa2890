#include "plimsoll/app/finetune/adapters.h"

#include <ATen/Context.h>

#include <nlohmann/json.hpp>

#include "plimsoll/app/error.h"
#include "plimsoll/app/first_model.h"
#include "plimsoll/io/checkpoint.h"
#include "plimsoll/models/load.h"
#include "plimsoll/models/tensors.h"

namespace plimsoll::app {

nlohmann::json adapters_json(const FinetuneOptions& options) {
  return {{"r", options.lora->adapters.rank},
          {"alpha", options.lora->adapters.alpha},
          {"dropout", options.lora->adapters.dropout},
          {"targets", options.lora->targets},
          {"base", recipe::name_of(kBases, options.base)}};
}

int64_t adapter_parameters(const FinetuneOptions& options) {
  return models::lora_parameters(config_of_directory(options.run.source), *options.lora);
}

std::shared_ptr<models::LanguageModel> adapted_model(const FinetuneOptions& options) {
  const models::LoadedModel loaded =
      models::load(options.run.source, {.dtype = options.base, .codes = {.has_gradient = true}});
  at::manual_seed(static_cast<uint64_t>(options.run.seed));
  models::add_lora(*loaded.model, *options.lora);
  return loaded.model;
}

void save_adapters(const FinetuneOptions& options) {
  const auto model = adapted_model(options);
  const auto latest = io::load_latest_checkpoint(options.run.out);
  if (!latest) fail("{}: expected a run with a checkpoint, got none", options.run.out.native());
  models::load_tensors(model->module(), latest->checkpoint.sections.at("model"));
  models::save_adapter(*model, options.run.out, {.base_model = options.run.source.native()});
}

}  // namespace plimsoll::app
