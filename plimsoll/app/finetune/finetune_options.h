// Options of a fine-tuning run. The command's table binds to these fields, so their values here are its defaults.
#pragma once

#include <filesystem>
#include <optional>
#include <vector>

#include "plimsoll/app/finetune/read_examples.h"
#include "plimsoll/app/train_options.h"

namespace plimsoll::app {

struct FinetuneOptions {
  // Beside these defaults: what plimsoll train has. source is the model's directory, data are files and directories of
  // examples; steps and warmup follow from the examples, and eval_every and save_every of 0 stand for an epoch.
  TrainOptions run = [] {
    TrainOptions defaults;
    defaults.batch = 4;
    defaults.lr = 2e-5;
    defaults.weight_decay = 0;
    defaults.eval_every = defaults.save_every = 0;
    return defaults;
  }();
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
