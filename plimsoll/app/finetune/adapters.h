// LoRA in a fine-tuning run: the frozen base with adapters that train, and the directory that the run leaves.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>

#include "plimsoll/app/finetune/finetune_options.h"
#include "plimsoll/models/language_model.h"

namespace plimsoll::app {

// TrainOptions::adapters of the run.
nlohmann::json adapters_json(const FinetuneOptions& options);

// Parameters of the adapters. Throws c10::ValueError for targets that the model lacks.
int64_t adapter_parameters(const FinetuneOptions& options);

// Throws UsageError for options that do not go with adapters, or with the whole model, and for targets that the model lacks;
// io::Error for a model that cannot be read.
void check_adapters(const FinetuneOptions& options);

// The base of options.run.source as options.base has it, and adapters drawn from the run's seed. Throws io::Error, and
// c10::ValueError for targets that the model lacks.
std::shared_ptr<models::LanguageModel> adapted_model(const FinetuneOptions& options);

// Writes the adapters of the newest checkpoint to options.run.out, as PEFT does.
void save_adapters(const FinetuneOptions& options);

}  // namespace plimsoll::app
