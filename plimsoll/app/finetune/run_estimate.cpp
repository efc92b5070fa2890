#include "plimsoll/app/finetune/run_estimate.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <string>

#include "plimsoll/amp/fp8_autocast.h"
#include "plimsoll/app/error.h"
#include "plimsoll/app/finetune/adapters.h"
#include "plimsoll/app/first_model.h"
#include "plimsoll/app/limits.h"
#include "plimsoll/app/process_memory.h"
#include "plimsoll/io/json.h"
#include "plimsoll/models/decoder/config_json.h"
#include "plimsoll/models/decoder/model.h"
#include "plimsoll/models/decoder/tensors.h"
#include "plimsoll/nn/undrawn.h"
#include "plimsoll/ops/memory/saved_bytes.h"
#include "plimsoll/ops/tensor/dtype.h"
#include "plimsoll/runtime/threads.h"
#include "plimsoll/runtime/unexpected.h"

namespace plimsoll::app {
namespace {

constexpr double kBlockOfLogits = 64 << 20;  // ops::cross_entropy_chunk_rows

int64_t numel(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

// Saved for backward by a model of so many of the layers, with a small vocabulary.
double saved_bytes(const FinetuneOptions& options, models::DecoderConfig config, int64_t layers, int64_t tokens) {
  config.layers = layers;
  config.reaches.assign(static_cast<size_t>(layers), models::Reach::kFull);
  config.vocabulary = 64;
  config.context = std::max(config.context, tokens);
  const nn::UndrawnParameters undrawn;
  models::Decoder model(config);
  const at::NoGradGuard no_grad;
  for (at::Tensor& parameter : model->parameters()) parameter.zero_();
  if (options.lora) models::add_lora(*model, {.adapters = options.lora->adapters});
  const at::AutoGradMode grad(true);
  model->checkpoint_activations(options.run.checkpoint_activations);
  const at::Tensor zeros = at::zeros({1, tokens}, at::kLong);
  const ops::SavedBytesCounter counter(model->parameters());
  const amp::Fp8Autocast scope({.recipe = options.run.recipe.value});
  const at::Tensor loss = model->packed_loss({.tokens = zeros, .targets = zeros, .lengths = {tokens}});
  return static_cast<double>(counter.bytes());
}

struct SavedBytes {
  double weights = 0;  // copies of a layer's weights
  double token = 0;    // of all layers
};

SavedBytes count_saved(const FinetuneOptions& options, const models::DecoderConfig& config) {
  constexpr int64_t kFew = 32, kMore = 96;
  const auto by_token = [&](int64_t layers) {
    return (saved_bytes(options, config, layers, kMore) - saved_bytes(options, config, layers, kFew)) / (kMore - kFew);
  };
  const double one = by_token(1), layer = by_token(2) - one;
  const double fixed = saved_bytes(options, config, 1, kFew) - kFew * one;
  return {.weights = std::max(fixed, 0.0), .token = one + static_cast<double>(config.layers - 1) * layer};
}

// Parameters outside the blocks, then those of each block.
std::vector<shard::PlannedUnit> units_of(const models::DecoderConfig& config, double kept_bytes) {
  std::vector<shard::PlannedUnit> units(static_cast<size_t>(config.layers + 1));
  constexpr std::string_view kBlocks = "blocks.";
  for (const auto& [name, shape] : models::decoder_parameter_shapes(config)) {
    const bool is_block = name.starts_with(kBlocks);
    shard::PlannedUnit& unit = units[is_block ? std::stoul(name.substr(kBlocks.size())) + 1 : 0];
    unit.parameters += numel(shape);
    unit.gathered_bytes += 4.0 * static_cast<double>(numel(shape));
    unit.largest = std::max(unit.largest, numel(shape));
    if (is_block) unit.kept_bytes = kept_bytes;
  }
  return units;
}

double total_bytes(const FinetuneOptions& options, int64_t rows, int64_t ranks) {
  return estimate_memory(options, rows, ranks).total();
}

double moment_bytes(optim::StateKind kind) {
  switch (kind) {
    case optim::StateKind::kFp32:
      return 4;
    case optim::StateKind::kBf16:
      return 2;
    case optim::StateKind::k8Bit:
      return 1 + 2.0 / 32;
  }
  runtime::unexpected("AdamW: state", static_cast<int>(kind));
}

// Bytes of the weights of a frozen base.
double base_bytes(const FinetuneOptions& options, const models::DecoderConfig& config) {
  const std::filesystem::path file = options.run.source / "config.json";
  const auto stored = models::read_config_dtype(io::read_json(file), file.native()).value_or(at::kFloat);
  const auto computed = static_cast<double>(elementSize(models::computed_in(options.base, stored)));
  double bytes = 0;
  for (const auto& [name, shape] : models::decoder_parameter_shapes(config)) {
    const bool is_code = options.base == models::WeightDtype::kFp8 && shape.size() == 2 && name.starts_with("blocks.");
    bytes += (is_code ? 1 : computed) * static_cast<double>(numel(shape));
  }
  return bytes;
}

// Changes memory that was planned for training the whole model to that of adapters.
void freeze(MemoryEstimate& estimate, const FinetuneOptions& options, const models::DecoderConfig& config) {
  const auto trained = static_cast<double>(adapter_parameters(options));
  const double share = trained / static_cast<double>(estimate.parameters);
  estimate.shared.parameters = base_bytes(options, config) + 4 * trained;
  estimate.shared.gradients *= share;
  estimate.shared.states *= share;
  estimate.head = kBlockOfLogits;
}

// Changes memory that was planned for two moments, weights and gradients in FP32 to that of narrow ones.
void narrow(shard::PlannedMemory& memory, const TrainOptions& options) {
  const double elements = memory.states / 8;
  memory.states = 2 * elements * moment_bytes(options.optimizer_state);
  if (options.masters == optim::MasterKind::kFp32) return;
  memory.parameters /= 2;
  memory.gradients /= 2;
  if (options.masters == optim::MasterKind::kSplit) memory.states += elements;
}

}  // namespace

MemoryEstimate estimate_memory(const FinetuneOptions& options, int64_t rows, int64_t ranks) {
  const models::DecoderConfig config = config_of_directory(options.run.source);
  const SavedBytes saved = count_saved(options, config);
  const shard::PlannedStep step{
      .units = units_of(config, saved.weights),
      .sharing = options.run.shard,
      .world = ranks,
      .activation_bytes = saved.token * static_cast<double>(rows * finetuning_context(options.run)),
      .network = {.bytes_per_second = 1}};
  MemoryEstimate estimate{.shared = shard::plan_step(step).memory,
                          .head = kBlockOfLogits + 4.0 * static_cast<double>(config.vocabulary * config.dim)};
  for (const shard::PlannedUnit& unit : step.units) estimate.parameters += unit.parameters;
  narrow(estimate.shared, options.run);
  if (options.lora) freeze(estimate, options, config);
  return estimate;
}

double least_seconds(const FinetuneOptions& options, double tokens) {
  const models::DecoderConfig config = config_of_directory(options.run.source);
  double weights = 0;  // of products
  for (const auto& [name, shape] : models::decoder_parameter_shapes(config)) {
    const bool is_embedding = name.ends_with("embedding.weight") && !(config.ties_head && name.starts_with("token"));
    if (shape.size() == 2 && !is_embedding) weights += static_cast<double>(numel(shape));
  }
  const MachineLimits limits = measure_limits();
  const bool is_fp32 = options.run.recipe.value.high_precision_format() == format::Format::kFp32;
  const double gflops =
      is_fp32 ? limits.fp32_gflops
              : std::max({limits.fp32_gflops, limits.bf16_gflops.value_or(0), limits.tile_gflops.value_or(0)});
  // Three products of two operations each for a token and a weight.
  return 6 * weights * tokens / (gflops * 1e9 * runtime::threads());
}

void expect_memory(const FinetuneOptions& options, const MemoryEstimate& estimate, int64_t ranks) {
  const auto available = available_memory_bytes();
  if (!available || estimate.total() <= static_cast<double>(*available)) return;
  const auto fits = [&](const FinetuneOptions& other, int64_t rows) {
    return total_bytes(other, rows, ranks) <= static_cast<double>(*available);
  };
  const int64_t rows = options.run.batch / ranks;
  std::string advice = io::compose("no {} fine-tuning of this model fits", options.lora ? "LoRA" : "full");
  FinetuneOptions checkpointed = options;
  checkpointed.run.checkpoint_activations = true;
  int64_t fewer = rows;
  while (fewer > 1 && !fits(options, fewer)) fewer /= 2;
  if (fits(options, fewer)) {
    advice = io::compose("--batch {} would fit", fewer * ranks);
  } else if (fits(checkpointed, 1)) {
    advice = io::compose("--batch {} --checkpoint-activations would fit", ranks);
  }
  refuse("finetune: expected memory of {:.1f} GB, got {:.1f} GB that are free; {}", estimate.total() / 1e9,
         static_cast<double>(*available) / 1e9, advice);
}

}  // namespace plimsoll::app
