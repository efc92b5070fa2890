// `plimsoll finetune` as a function: a model of a Hugging Face directory, trained on examples, as another such directory.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "plimsoll/app/finetune/finetune_data.h"
#include "plimsoll/app/finetune/finetune_options.h"
#include "plimsoll/app/finetune/run_estimate.h"
#include "plimsoll/app/train/train.h"

namespace plimsoll::app {

// A run as it is known before its first step.
struct FinetunePlan {
  int64_t training = 0, held_out = 0;        // examples
  int64_t cut = 0, skipped = 0, joined = 0;  // Examples
  int64_t tokens = 0, counted = 0;           // of the training examples; read in an epoch
  int64_t context = 0, rows = 0, steps = 0;
  // By the model's certificate, for so many targets a step: the recipe's where all overflow; nothing: it has none.
  std::optional<LossScale> loss_scale = {};
  double targets_a_step = 0;
  int64_t adapters = 0;      // parameters of theirs; 0: the whole model trains
  MemoryEstimate memory;     // of a rank
  double least_seconds = 0;  // of all steps, at the peak of the machine
};

// Text that the model writes behind the beginning of an example, the likeliest token each time.
struct SampleReply {
  bool is_trained = false;
  std::string prompt, reply;
};

struct FinetuneObserver {
  TrainObserver training;
  // Called on one rank.
  std::function<void(const FinetunePlan&)> on_plan;
  std::function<void(const SampleReply&)> on_reply;
};

// Trains as app::train does and with its checkpoints in run.out. When the run is done it is a Hugging Face directory, too,
// whose weights have the dtype of run.source; or, with options.lora, a directory of PEFT's. Returns nothing if it was interrupted. Throws UsageError or Error;
// before the first step nothing is written.
std::optional<TrainSummary> finetune(const FinetuneOptions& options, const FinetuneObserver& observer);

}  // namespace plimsoll::app
