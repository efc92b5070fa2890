// `plimsoll train` as a function: a run from its first step, or its newest checkpoint, to its last.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "plimsoll/app/train/step_profile.h"
#include "plimsoll/app/train/step_result.h"
#include "plimsoll/app/train/train_options.h"
#include "plimsoll/app/train/training_data.h"
#include "plimsoll/watch/session.h"

namespace plimsoll::app {

struct StepRecord {
  int64_t step = 0;   // counted from 1
  int64_t steps = 0;  // of the run
  StepResult result;
  std::optional<double> val_loss = {};  // of the steps that evaluate
  double tokens_per_s = 0;              // of this step alone
  double cpu_seconds = 0;               // of all threads of this process, in this step
};

struct TrainSummary {
  std::string recipe;
  int64_t steps = 0;
  int64_t parameters = 0;
  std::optional<double> final_loss = {};      // of the last step; nothing where an older checkpoint does not say it
  std::optional<double> final_val_loss = {};  // nothing without held-out data
  // Figures of the last process that made steps:
  double tokens_per_s = 0;  // median of its steps; evaluation and checkpoints left out
  int64_t saved_activation_bytes = 0;
  int64_t peak_rss_bytes = 0;
  int64_t peak_tensor_bytes = 0;  // CachingAllocatorStatistics, of this process
  int64_t sent_bytes = 0;         // by this process to others, in a step
  nlohmann::json precision;       // shares_json of all steps under the recipe `auto`, null under others
};

// Receivers of what the run reports while it goes on.
struct TrainObserver {
  std::function<void(const StepRecord&)> on_step;
  std::function<void(const std::string&)> on_note;            // one line
  std::function<void(const std::string&)> on_row = {};        // a row of figures, beside those of the steps
  std::function<void(const ProfileReport&)> on_profile = {};  // at the end, where options.profile asks for one
  std::function<void(const watch::Session&)> on_watch = {};   // at the end, where options.watch asks for it
};

// The data and the model that a run begins with.
struct RunBeginning {
  // Opens the data, on each of the ranks. May set options that depend on them.
  std::function<std::unique_ptr<TrainingData>(TrainOptions&, int64_t ranks)> data;
  std::function<std::shared_ptr<models::LanguageModel>(const TrainOptions&)> model;
};

// Trains until options.steps are done. Returns nothing if SIGINT or SIGTERM asked it to stop; a checkpoint is written
// then. Throws UsageError or Error; before the first step nothing is written.
std::optional<TrainSummary> train(const TrainOptions& options, const RunBeginning& beginning,
                                  const TrainObserver& observer);
// The same on a text, with the first model of the options.
std::optional<TrainSummary> train(const TrainOptions& options, const TrainObserver& observer);

// Whether the losses that a run ends with are.
bool is_finite(const TrainSummary& summary);

// Lines of the JSON log. What is not finite is null.
nlohmann::json to_json(const StepRecord& record);
nlohmann::json to_json(const TrainSummary& summary);

}  // namespace plimsoll::app
