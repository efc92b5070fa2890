// Options of a training run. The command's table binds to these fields, so their values here are its defaults.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "plimsoll/app/parse_recipe.h"
#include "plimsoll/app/train/loss_scale.h"
#include "plimsoll/models/presets.h"
#include "plimsoll/optim/schedule.h"
#include "plimsoll/optim/state_kinds.h"
#include "plimsoll/recipe/named.h"
#include "plimsoll/shard/average/compression.h"
#include "plimsoll/shard/plan/step_plan.h"
#include "plimsoll/watch/mode.h"

namespace plimsoll::app {

// Schedules, as users type them.
inline constexpr std::array<recipe::Named<optim::Decay>, 2> kSchedules = {
    {{"cosine", optim::Decay::kCosine}, {"linear", optim::Decay::kLinear}}};

// Place where a rank's part waits while it does not compute.
enum class Offload : uint8_t {
  kNone,  // in memory
  kCpu,   // in the memory of the CPU, where all of it is
  kDisk,  // in files without names in the directory of the run
};

// Another recipe for the last share of a run's steps.
struct FinishIn {
  ChosenRecipe recipe;
  double share = 0;
};

struct TrainOptions {
  std::vector<std::filesystem::path> data;  // files and directories
  std::filesystem::path out;                // directory of the run
  ChosenRecipe recipe = parse_recipe("fp8");
  std::optional<double> high_precision_tail;  // share of the last blocks without codes; none: the recipe's
  std::optional<FinishIn> finish_in;

  models::Preset model = models::presets().front().value;
  std::optional<int64_t> layers, dim, heads, context;  // instead of the model's
  // Hugging Face directories, instead of the named model: with weights and tokenizer, or config and tokenizer of a new
  // model. Empty: none.
  std::filesystem::path source, config_of;
  std::string preset;  // name of the model, where one was typed

  int64_t steps = 300;
  int64_t batch = 16;      // sequences in a forward pass
  int64_t accumulate = 1;  // forward passes in a step
  double lr = 1e-3;        // at its peak
  optim::Decay schedule = optim::Decay::kCosine;
  int64_t warmup = 30;  // steps
  double weight_decay = 0.1;
  double clip = 1.0;  // global gradient norm
  LossScale loss_scale;
  int64_t loss_scale_hysteresis = 1;  // overflows until it backs off
  optim::StateKind optimizer_state = optim::StateKind::kFp32;
  optim::MasterKind masters = optim::MasterKind::kFp32;  // others: the weights are BF16
  int64_t seed = 1;
  int64_t threads = 0;                                      // 0: as many as cores
  shard::Sharing shard = shard::Sharing::kNone;             // of the processes of a launch (shard::Launch)
  shard::Compression compress = shard::Compression::kNone;  // of gradients, while they travel; not kFsdp
  Offload offload = Offload::kNone;                         // of what kFsdp shares
  // Each weight is updated in backward, when its gradient is complete, which is freed then; clip is infinite.
  bool release_gradients = false;
  bool checkpoint_activations = false;  // backward computes each block again
  int64_t deadline = 600;               // seconds that a process waits for the others

  int64_t eval_every = 100;
  int64_t eval_windows = 128;  // held-out windows in an evaluation
  int64_t save_every = 100;
  int64_t keep = 3;         // checkpoints
  bool async_save = false;  // training goes on while a checkpoint is written
  int64_t log_every = 10;
  int64_t log_scales = 10;                // steps between records of every operand's amax and scale; 0: none
  watch::Mode watch = watch::Mode::kOff;  // reported at the end; the headroom of each step is watched always
  bool resume = false;
  std::filesystem::path json;                    // JSON lines
  std::optional<std::filesystem::path> profile;  // of some steps; the trace of them goes there, unless it is empty
  // Adapters that train beside a frozen base, and the base's dtype, which a run that is resumed must have in common; null:
  // the whole model trains. Checkpoints are without a frozen base.
  nlohmann::json adapters;
  nlohmann::json configuration;            // of the whole command, for the record
  nlohmann::ordered_json common_to_ranks;  // {option: value}, which all ranks must have in common
};

// The Hugging Face directory that the run takes its model from.
std::optional<std::filesystem::path> hugging_face_directory(const TrainOptions& options);
// The named model's sizes, or those given instead.
models::Sizes sizes_of(const TrainOptions& options);
// Throws UsageError for a loss scale that may skip a step whose gradients are released, and for a hysteresis that has nothing
// to change.
void check_loss_scale(const TrainOptions& options);
// Throws UsageError for BF16 weights under fp16.
void check_masters(const TrainOptions& options);
// The recipe of a step, counted from 0: the last share * steps, rounded up, are in that of finish_in.
const recipe::Recipe& recipe_of_step(const TrainOptions& options, int64_t step);
// finish_in as [recipe, share]; null: there is none.
nlohmann::json finish_json(const TrainOptions& options);
// A model of these sizes, as models::Family has it. Throws UsageError.
nlohmann::json shape_of(const TrainOptions& options);

}  // namespace plimsoll::app
