#include "plimsoll/app/finetune/run_estimate.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <string>

#include "plimsoll/amp/fp8_autocast.h"
#include "plimsoll/app/finetune/adapters.h"
#include "plimsoll/app/process/limits.h"
#include "plimsoll/app/process/process_memory.h"
#include "plimsoll/app/train/first_model.h"
#include "plimsoll/io/json.h"
#include "plimsoll/models/decoder/config_json.h"
#include "plimsoll/models/decoder/model.h"
#include "plimsoll/models/decoder/tensors.h"
#include "plimsoll/models/load.h"
#include "plimsoll/nn/held_codes.h"
#include "plimsoll/nn/undrawn.h"
#include "plimsoll/ops/memory/saved_bytes.h"
#include "plimsoll/ops/tensor/dtype.h"
#include "plimsoll/runtime/threads.h"
#include "plimsoll/runtime/unexpected.h"
#include "plimsoll/watch/audit.h"

namespace plimsoll::app {
namespace {

constexpr double kBlockOfLogits = 64 << 20;  // ops::cross_entropy_chunk_rows
// An operand that a product packs, 32 MiB at a time, and its tiles where they wait for all of them (kernels/gemm).
constexpr double kPanels = 64 << 20;
// Memory beside tensors and what is held before the model is there: tensors too small for the pool, the examples'
// batches, stacks and scratch memory of threads, pages of libraries that are first used in a step. Measured: what five
// kinds of runs of SmolLM2-135M took beyond the rest of the estimate (finetune_memory_test.py), with two threads.
constexpr double kBesideTensors = 64 << 20;

int64_t numel(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

double bytes_of(at::ScalarType dtype) { return static_cast<double>(elementSize(dtype)); }

at::ScalarType base_dtype(const FinetuneOptions& options) {
  const std::filesystem::path file = options.run.source / "config.json";
  const auto stored = models::read_config_dtype(io::read_json(file), file.native()).value_or(at::kFloat);
  return models::computed_in(options.base, stored);
}

// Dtype of weights that are no codes.
at::ScalarType weight_dtype(const FinetuneOptions& options) {
  if (options.lora) return base_dtype(options);
  return options.run.masters == optim::MasterKind::kFp32 ? at::kFloat : at::kBFloat16;
}

bool has_codes(const FinetuneOptions& options) {
  return options.lora && (options.base == models::WeightDtype::kFp8 || models::has_coded_weights(options.run.source));
}

// Bytes of an element with its scale. E2M1 of a file has become E4M3 with an FP32 scale for 16.
double code_bytes(const FinetuneOptions& options) { return models::has_coded_weights(options.run.source) ? 1.25 : 1; }

// Weights that are zeros, in the dtypes of the run's, and adapters where it has such.
void prepare(models::DecoderImpl& model, const FinetuneOptions& options) {
  for (at::Tensor& parameter : model.parameters()) {
    parameter.zero_();
    parameter.set_data(parameter.to(weight_dtype(options)));
  }
  if (has_codes(options)) nn::hold_codes(model, {}, {.has_gradient = true});
  if (options.lora) models::add_lora(model, {.adapters = options.lora->adapters});
  model.train();
}

// Saved for backward by a model of so many of the layers, with a small vocabulary.
double saved_bytes(const FinetuneOptions& options, models::DecoderConfig config, int64_t layers, int64_t tokens) {
  config.layers = layers;
  config.reaches.assign(static_cast<size_t>(layers), models::Reach::kFull);
  config.vocabulary = 64;
  config.high_precision.clear();  // of a plan for all layers
  config.context = std::max(config.context, tokens);
  const watch::AuditRecording no_audit(nullptr);  // this model is not the run's
  const nn::UndrawnParameters undrawn;
  models::Decoder model(config);
  {
    const at::NoGradGuard no_grad;
    prepare(*model, options);
  }
  model->checkpoint_activations(options.run.checkpoint_activations);
  const at::Tensor zeros = at::zeros({1, tokens}, at::kLong);
  const ops::SavedBytesCounter counter(model->parameters());
  const amp::Fp8Autocast scope({.recipe = options.run.recipe.value});
  const at::Tensor loss = model->packed_loss({.tokens = zeros, .targets = zeros, .lengths = {tokens}});
  return static_cast<double>(counter.bytes());
}

struct SavedBytes {
  double weights = 0;              // copies of a layer's weights
  double token = 0, of_layer = 0;  // of all layers, and of one
};

SavedBytes count_saved(const FinetuneOptions& options, const models::DecoderConfig& config) {
  constexpr int64_t kFew = 32, kMore = 96;
  const auto by_token = [&](int64_t layers) {
    return (saved_bytes(options, config, layers, kMore) - saved_bytes(options, config, layers, kFew)) / (kMore - kFew);
  };
  const double one = by_token(1), layer = by_token(2) - one;
  const double fixed = saved_bytes(options, config, 1, kFew) - kFew * one;
  // Held codes are saved once, and counted as weights.
  return {.weights = has_codes(options) ? 0 : std::max(fixed, 0.0),
          .token = one + static_cast<double>(config.layers - 1) * layer,
          .of_layer = layer};
}

// Parameters outside the blocks, then those of each block.
std::vector<shard::PlannedUnit> units_of(const FinetuneOptions& options, const models::DecoderConfig& config,
                                         double kept_bytes) {
  std::vector<shard::PlannedUnit> units(static_cast<size_t>(config.layers + 1));
  const auto adapters = options.lora ? adapter_parameters(options) : 0;
  constexpr std::string_view kBlocks = "blocks.";
  for (const auto& [name, shape] : models::decoder_parameter_shapes(config)) {
    const bool is_block = name.starts_with(kBlocks);
    const auto count = static_cast<double>(numel(shape));
    shard::PlannedUnit& unit = units[is_block ? std::stoul(name.substr(kBlocks.size())) + 1 : 0];
    if (options.lora) {
      const bool is_code = has_codes(options) && is_block && shape.size() == 2 && !config.keeps_in_high_precision(name);
      unit.frozen_bytes += count * (is_code ? code_bytes(options) : bytes_of(weight_dtype(options)));
    } else {
      unit.parameters += numel(shape);
      unit.largest = std::max(unit.largest, numel(shape));
    }
    unit.gathered_bytes += count * bytes_of(weight_dtype(options));
    if (is_block) unit.kept_bytes = kept_bytes;
  }
  for (size_t unit = 1; unit < units.size(); ++unit) units[unit].parameters += adapters / config.layers;
  return units;
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

// Logits, what their products pack, the head's weight in the dtype of the products where it has another, and where it
// trains its gradient, which is FP32 until it joins the embedding's, and the packed operand of that.
double head_bytes(const FinetuneOptions& options, const models::DecoderConfig& config, double tokens) {
  const auto elements = static_cast<double>(config.vocabulary * config.dim);
  const double logits = std::min(kBlockOfLogits, tokens * static_cast<double>(config.vocabulary) * sizeof(float));
  const at::ScalarType computed = ops::dtype_of(options.run.recipe.value.high_precision_format());
  const double converted = weight_dtype(options) == computed ? 0 : elements * bytes_of(computed);
  return logits + kPanels + converted + (options.lora ? 0 : 4 * elements + logits);
}

// Results of a block's backward pass, for a token: gradients of what it saves, and of weights that train as much again.
// A checkpointed block computes what it saves once more.
double working_bytes(const FinetuneOptions& options, const models::DecoderConfig& config, double saved) {
  const double gradients = options.lora ? 1 : 2;
  if (!options.run.checkpoint_activations) return gradients * saved;
  FinetuneOptions whole = options;
  whole.run.checkpoint_activations = false;
  return (gradients + 2) * count_saved(whole, config).of_layer;
}

// Weights of a model that generates: those of products are packed beside what they were loaded as, but for codes and for
// a head that is read in place.
double reply_bytes(const FinetuneOptions& options, const models::DecoderConfig& config) {
  if (options.samples == 0) return 0;
  double bytes = 0;
  for (const auto& [name, shape] : models::decoder_parameter_shapes(config)) {
    const bool is_product = shape.size() == 2 && !name.ends_with("embedding.weight");
    const bool is_code =
        has_codes(options) && is_product && name != "head.weight" && !config.keeps_in_high_precision(name);
    const double each = is_code ? code_bytes(options) : (is_product ? 2 : 1) * bytes_of(weight_dtype(options));
    bytes += static_cast<double>(numel(shape)) * each;
  }
  return bytes;
}

// The pool's bound (runtime::BlockPool).
double idle_beside(double tensors) { return std::max(tensors / 16, 64.0 * (1 << 20)); }

}  // namespace

double MemoryEstimate::idle() const { return idle_beside(tensors()); }

double MemoryEstimate::replies() const {
  return reply_weights == 0 ? 0 : process + reply_weights + idle_beside(reply_weights);
}

MemoryEstimate estimate_memory(const FinetuneOptions& options, int64_t rows, int64_t ranks) {
  const models::DecoderConfig config = config_of_directory(options.run.source);
  const SavedBytes saved = count_saved(options, config);
  const auto tokens = static_cast<double>(rows * finetuning_context(options.run));
  const bool is_narrow = weight_dtype(options) == at::kBFloat16 && !options.lora;
  const double correction = options.run.masters == optim::MasterKind::kSplit ? 1 : 0;
  const shard::PlannedStep step{.units = units_of(options, config, saved.weights),
                                .sharing = options.run.shard,
                                .world = ranks,
                                .activation_bytes = saved.token * tokens,
                                .master_bytes = is_narrow ? 2.0 : 4.0,
                                .gradient_bytes = is_narrow ? 2.0 : 4.0,
                                .state_bytes = 2 * moment_bytes(options.run.optimizer_state) + correction,
                                .releases_gradients = options.run.release_gradients,
                                .network = {.bytes_per_second = 1}};
  MemoryEstimate estimate{.shared = shard::plan_step(step).memory,
                          .head = head_bytes(options, config, tokens),
                          .working = working_bytes(options, config, saved.of_layer) * tokens,
                          .process = static_cast<double>(rss_bytes()) + kBesideTensors,
                          .reply_weights = reply_bytes(options, config)};
  for (const auto& [name, shape] : models::decoder_parameter_shapes(config)) estimate.parameters += numel(shape);
  return estimate;
}

double product_operations(const FinetuneOptions& options, double tokens, double counted) {
  const models::DecoderConfig config = config_of_directory(options.run.source);
  const auto head = static_cast<double>(config.vocabulary * config.dim);
  double elements = config.ties_head ? 0 : -head;  // of all layers' weights
  for (const auto& [name, shape] : models::decoder_parameter_shapes(config)) {
    if (shape.size() == 2 && !name.ends_with("embedding.weight")) elements += static_cast<double>(numel(shape));
  }
  // Output, gradient of the input, and that of a weight that trains.
  const double products = options.lora ? 2 : 3;
  return 2 * products * (elements * tokens + head * counted);
}

double least_seconds(const FinetuneOptions& options, double operations) {
  const MachineLimits limits = measure_limits();
  const bool is_fp32 = options.run.recipe.value.high_precision_format() == format::Format::kFp32;
  const double gflops =
      is_fp32 ? limits.fp32_gflops
              : std::max({limits.fp32_gflops, limits.bf16_gflops.value_or(0), limits.tile_gflops.value_or(0)});
  return operations / (gflops * 1e9 * runtime::threads());
}

}  // namespace plimsoll::app
