// Options of a fine-tuning run. The command's table binds to these fields, so their values here are its defaults.
#pragma once

#include <array>
#include <filesystem>
#include <optional>
#include <vector>

#include "plimsoll/app/finetune/read_examples.h"
#include "plimsoll/app/train/train_options.h"
#include "plimsoll/models/lora/lora.h"
#include "plimsoll/models/weight_dtype.h"

namespace plimsoll::app {

// Dtypes of the frozen base of adapters.
inline constexpr std::array<recipe::Named<models::WeightDtype>, 3> kBases = {
    {{"stored", models::WeightDtype::kAsStored},
     {"fp8", models::WeightDtype::kFp8},
     {"bf16", models::WeightDtype::kBf16}}};

// Learning rates at their peak, those of TRL's sft script.
inline constexpr double kFullRate = 2e-5, kLoraRate = 2e-4;

// Adapters that train where nothing else was asked for; rank and alpha are TRL's.
inline models::LoraOptions usual_lora() { return {.adapters = {.rank = 16, .alpha = 32, .dropout = 0.05}}; }

struct FinetuneOptions {
  // Beside these defaults: what plimsoll train has. source is the model's directory, data are files and directories of
  // examples; lr is kFullRate or kLoraRate unless the user has another, steps and warmup follow from the examples, and
  // eval_every and save_every of 0 stand for an epoch.
  TrainOptions run = [] {
    TrainOptions defaults;
    defaults.batch = 4;
    defaults.weight_decay = 0;
    defaults.eval_every = defaults.save_every = 0;
    return defaults;
  }();
  std::optional<models::LoraOptions> lora;                    // nothing: the whole model trains
  models::WeightDtype base = models::WeightDtype::kAsStored;  // of kBases
  double epochs = 3;
  std::optional<int64_t> steps;                  // instead of epochs
  double warmup_share = 0.05;                    // of the steps
  std::vector<std::filesystem::path> eval_data;  // held out
  double eval_share = 0.05;                      // of the examples, held out where there is no eval_data
  TrainOn train_on = TrainOn::kAssistant;
  Overlong overlong = Overlong::kCut;
  bool pack = true;
  int64_t samples = 2;    // replies to show before the run and after it
  int64_t show_data = 0;  // examples to show instead of a run
};

// Tokens of an example and of a row: options.run.context, or as many as the model sees, at most 1024.
int64_t finetuning_context(const TrainOptions& run);

}  // namespace plimsoll::app
