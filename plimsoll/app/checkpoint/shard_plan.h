// Cost of training a GPT on many processes: plimsoll train as shard::plan_step counts it.
#pragma once

#include <cstdint>
#include <vector>

#include "plimsoll/app/train/train_options.h"
#include "plimsoll/models/gpt/config.h"
#include "plimsoll/recipe/recipe.h"
#include "plimsoll/shard/plan/step_plan.h"

namespace plimsoll::app {

struct ShardPlanOptions {
  // The run whose model, recipe, shard and batch (of each process) are read.
  TrainOptions run;
  std::vector<int64_t> world = {1, 2, 8, 64, 512, 4096, 100000};
  double tokens_per_second = 0;  // of one process alone, as plimsoll train prints it
  double bandwidth = 0;          // GB/s that a process sends while it receives as many
  double latency = 20;           // microseconds for a message
  double memory_bandwidth = 10;  // GB/s that a process reads and writes
  bool one_machine = false;      // the processes share the cores that they compute and send with
};

struct PlannedRun {
  int64_t world = 0;
  shard::StepPlan step;
  double tokens_per_second = 0;  // of all processes
};

struct ShardPlan {
  models::GptConfig shape;
  int64_t parameters = 0;
  double activation_bytes_per_token = 0;
  double alone_seconds = 0;      // of a step of one process
  std::vector<PlannedRun> runs;  // one for each world size
};

// Plans a step. Activations of a token are counted on small models of the same kind, in which they grow with layers,
// dim and heads as in large ones. Throws UsageError.
ShardPlan plan_shards(const ShardPlanOptions& options);

// By formula, for sizes that no machine holds.
std::vector<shard::PlannedUnit> units_of(const models::GptConfig& shape, const recipe::Recipe& recipe);

}  // namespace plimsoll::app
