// What a training run is asked to do. The command's table binds to these fields, so their values here are its defaults.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "plimsoll/app/model_shape.h"
#include "plimsoll/watch/mode.h"

namespace plimsoll::app {

struct TrainOptions {
  std::vector<std::filesystem::path> data;  // files and directories
  std::filesystem::path out;                // directory of the run
  std::string recipe = "fp8";               // name or JSON

  std::string model = "tiny";
  std::optional<int64_t> layers, dim, heads, context;  // instead of the model's

  int64_t steps = 300;
  int64_t batch = 16;      // sequences in a forward pass
  int64_t accumulate = 1;  // forward passes in a step
  double lr = 1e-3;        // at its peak
  int64_t warmup = 30;     // steps
  double weight_decay = 0.1;
  double clip = 1.0;                  // global gradient norm
  std::string loss_scale = "recipe";  // parse_loss_scale
  int64_t seed = 1;
  int64_t threads = 0;  // 0: as many as cores
  // What the processes of a launch (shard::launch_from_environment) share: shard_names().
  std::string shard = "none";
  std::string compress = "none";        // gradients of "ddp" and "zero1", while they travel: shard::compression_names()
  std::string offload = "none";         // where what "fsdp" shares waits: offload_names()
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
  nlohmann::json configuration;                  // of the whole command, for the record
  nlohmann::ordered_json common_to_ranks;        // {option: value}, which all ranks must have in common
};

// The named model with the sizes given instead. Throws UsageError.
ModelShape shape_of(const TrainOptions& options);

}  // namespace plimsoll::app
