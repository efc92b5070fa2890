#include "plimsoll/app/trainer.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "plimsoll/amp/fp8_autocast.h"
#include "plimsoll/app/error.h"
#include "plimsoll/app/loss_scale.h"
#include "plimsoll/app/parse_recipe.h"
#include "plimsoll/app/ranks.h"
#include "plimsoll/io/error.h"
#include "plimsoll/io/mapping_guard.h"
#include "plimsoll/ops/memory/saved_bytes.h"
#include "plimsoll/ops/scaling/rank_amaxes.h"
#include "plimsoll/optim/adamw.h"
#include "plimsoll/optim/schedule.h"
#include "plimsoll/shard/data_parallel/sharded_data_parallel.h"
#include "plimsoll/shard/optimizer/sharded_adamw.h"
#include "plimsoll/shard/optimizer/sharded_optimizer.h"
#include "plimsoll/watch/profile.h"

namespace plimsoll::app {
namespace {

using nlohmann::json;

// The last learning rate, as a share of the peak.
constexpr double kFinalShare = 0.1;

// The checkpoint's name for what compression has left out of gradients.
const char* const kLeftOut = "left_out";

torch::optim::AdamWOptions adamw_options(const TrainOptions& options) {
  return torch::optim::AdamWOptions(options.lr).betas({0.9, 0.95}).weight_decay(options.weight_decay);
}

at::Generator generator() { return at::detail::getDefaultCPUGenerator(); }

// Throws unless the checkpoint says the same as this run about something that its bits depend on.
void expect_same(const json& state, const char* name, const json& ours) {
  const json theirs = state.value(name, json());
  if (theirs != ours) fail("checkpoint: expected a run with {} {}, got {}", name, ours.dump(), theirs.dump());
}

bool shares_states(const TrainOptions& options) { return options.shard == "zero1" || options.shard == "zero2"; }

// Where parts wait that are not in memory.
std::optional<std::filesystem::path> offload_folder(const TrainOptions& options) {
  if (options.offload != "disk") return std::nullopt;
  std::filesystem::create_directories(options.out);
  return options.out;
}

int64_t count_parameters(const torch::nn::Module& model) {
  int64_t count = 0;
  for (const at::Tensor& parameter : model.parameters()) count += parameter.numel();
  return count;
}

std::unique_ptr<optim::NamedOptimizer> make_optimizer(const TrainOptions& options, const models::Gpt& model,
                                                      const ShardedGpt* sharded,
                                                      const std::shared_ptr<const shard::Communicator>& ranks) {
  optim::AdamWSettings settings{.seed = static_cast<uint64_t>(options.seed)};
  if (sharded != nullptr) {
    settings.home = sharded->state_home();
    return std::make_unique<shard::ShardedAdamW>(sharded->decay_groups(adamw_options(options)), ranks, settings);
  }
  const auto groups = optim::decay_groups(model->named_parameters(), adamw_options(options));
  if (shares_states(options)) return std::make_unique<shard::ShardedOptimizer>(groups, ranks, settings);
  return std::make_unique<optim::AdamW>(groups, settings);
}

amp::GradScalerOptions scaler_options(const TrainOptions& options, const recipe::Recipe& recipe,
                                      const std::shared_ptr<const shard::Communicator>& ranks) {
  amp::GradScalerOptions scaling = parse_loss_scale(options.loss_scale, recipe);
  if (options.shard == "zero2" || options.shard == "fsdp") scaling.ranks = ranks;
  return scaling;
}

std::shared_ptr<shard::DistributedDataParallel> make_parallel(const TrainOptions& options, models::Gpt& model,
                                                              const optim::NamedOptimizer& optimizer,
                                                              const std::shared_ptr<const shard::Communicator>& ranks) {
  if (options.shard != "zero2") {
    return std::make_shared<shard::DistributedDataParallel>(
        *model, ranks, shard::DataParallelOptions{.compression = shard::compression_of(options.compress)});
  }
  return std::make_shared<shard::ShardedDataParallel>(*model, dynamic_cast<const shard::ShardedOptimizer&>(optimizer),
                                                      ranks);
}

}  // namespace

Trainer::Trainer(const TrainOptions& options, const ModelShape& shape, io::TokenStream stream,
                 std::shared_ptr<const shard::Communicator> ranks)
    : options_(options),
      shape_(shape),
      recipe_(parse_recipe(options.recipe)),
      stream_(std::move(stream)),
      ranks_(std::move(ranks)),
      model_(make_gpt(shape, options.seed)),
      parameters_(count_parameters(*model_)),
      sharded_(options.shard == "fsdp" ? std::make_unique<ShardedGpt>(model_, ranks_, offload_folder(options))
                                       : nullptr),
      optimizer_(make_optimizer(options, model_, sharded_.get(), ranks_)),
      scaler_(scaler_options(options, recipe_, ranks_)),
      session_({.mode = options.watch == watch::Mode::kOff ? watch::Mode::kGuard : options.watch}) {
  model_->checkpoint_activations(options.checkpoint_activations);
  if (ranks_->size() == 1) return;
  if (options.batch % ranks_->size() != 0) {
    refuse("--batch: expected a multiple of the {} ranks, which share it, got {}", ranks_->size(), options.batch);
  }
  if (sharded_ == nullptr) parallel_ = make_parallel(options, model_, *optimizer_, ranks_);
  amax_reduction_ = ops::amax_reduction(ranks_);
}

at::Tensor Trainer::forward_loss(const at::Tensor& windows, std::optional<bool> is_first_microbatch) {
  const at::Tensor inputs = windows.slice(1, 0, shape_.context), targets = windows.slice(1, 1, shape_.context + 1);
  amp::Fp8Autocast scope({.recipe = recipe_, .reduction = amax_reduction_});
  return sharded_ ? sharded_->loss(inputs, targets) : model_->loss(inputs, targets, is_first_microbatch);
}

at::Tensor Trainer::next_windows() {
  const watch::Span phase("data");
  const watch::Span span("token stream");
  const int64_t part = options_.batch / ranks_->size();
  const at::Tensor windows = stream_.next(options_.batch).narrow(0, ranks_->rank() * part, part);
  io::check_mapped_files();
  return windows;
}

at::Tensor Trainer::counted_loss(const at::Tensor& windows, std::optional<bool> is_first_microbatch) {
  const watch::Span span("forward");
  if (saved_activation_bytes_) return forward_loss(windows, is_first_microbatch);
  const ops::SavedBytesCounter counter(sharded_ ? sharded_->memory() : model_->parameters());
  const at::Tensor loss = forward_loss(windows, is_first_microbatch);
  saved_activation_bytes_ = counter.bytes();
  return loss;
}

double Trainer::micro_step(int64_t index) {
  const at::Tensor windows = next_windows();
  const auto is_first = options_.accumulate > 1 ? std::optional(index == 0) : std::nullopt;
  const at::Tensor loss = counted_loss(windows, is_first);
  const watch::Span span("backward");
  std::optional<shard::DistributedDataParallel::NoSync> no_sync;
  if (parallel_ && index + 1 < options_.accumulate) no_sync.emplace(*parallel_);
  scaler_.scale(loss / options_.accumulate).backward();
  return loss.item<double>();
}

double Trainer::mean_over_ranks(double value) const {
  const at::Tensor sum = at::scalar_tensor(value, at::kDouble);
  ranks_->all_reduce_(sum).wait();
  return sum.item<double>() / static_cast<double>(ranks_->size());
}

void Trainer::zero_grad() {
  const watch::Span phase("optimizer");
  const watch::Span span("zero grad");
  optimizer_->zero_grad();
}

optim::StepReport Trainer::update() {
  const watch::Span phase("optimizer");
  const optim::StepReport report = scaler_.step(*optimizer_, {.max_norm = options_.clip});
  scaler_.update();
  return report;
}

StepResult Trainer::train_step() {
  StepResult result;
  result.lr = optim::cosine_lr({.peak_lr = options_.lr,
                                .final_lr = kFinalShare * options_.lr,
                                .warmup_steps = options_.warmup,
                                .total_steps = options_.steps},
                               step_);
  if (scaler_.is_enabled()) result.loss_scale = scaler_.get_scale();
  model_->train();
  zero_grad();
  session_.slots().clear();
  for (int64_t i = 0; i < options_.accumulate; ++i)
    result.loss += micro_step(i) / static_cast<double>(options_.accumulate);
  result.loss = mean_over_ranks(result.loss);
  optimizer_->set_lr(result.lr);
  const optim::StepReport report = update();
  if (scaler_.is_enabled()) result.flushed_share = scaler_.flushed_share();
  result.grad_norm = report.grad_norm;
  describe_numbers(result, report);
  ++step_;
  return result;
}

void Trainer::describe_numbers(StepResult& result, const optim::StepReport& report) {
  for (const watch::Record& record : session_.slots().records()) {
    const double least = result.headroom_bits.value_or(std::numeric_limits<double>::infinity());
    if (!std::isfinite(record.headroom_bits) || record.headroom_bits >= least) continue;
    result.headroom_bits = record.headroom_bits;
    result.headroom_slot = record.name;
  }
  if (options_.log_scales > 0 && step_ % options_.log_scales == 0) result.slots = session_.slots().records();
  if (report.skipped) {
    result.warning = io::compose("step {}: no update, {} gradient elements are not finite, the first in {}", step_ + 1,
                                 report.non_finite, report.first_non_finite);
    if (scaler_.is_enabled()) *result.warning += io::compose("; loss scale now {}", scaler_.get_scale());
  } else if (const auto records = session_.slots().non_finite(); !records.empty()) {
    result.warning = io::compose("step {}: {} holds values that are not finite", step_ + 1, records.front().name);
  }
}

double Trainer::validation_loss() {
  const at::NoGradGuard no_grad;
  model_->eval();
  const int64_t count = std::min(options_.eval_windows, stream_.validation_windows());
  double sum = 0;
  for (int64_t begin = 0; begin < count; begin += options_.batch) {
    const int64_t end = std::min(begin + options_.batch, count);
    const at::Tensor loss = forward_loss(stream_.validation(begin, end, count), std::nullopt);
    sum += loss.item<double>() * static_cast<double>(end - begin);
  }
  return sum / static_cast<double>(count);
}

shard::RankCheckpoint Trainer::checkpoint() const {
  const io::TokenStream::Cursor cursor = stream_.cursor();
  const auto share = [this](const io::TensorMap& tensors) {
    return shard::share_of_replicated(tensors, *ranks_, ranks_->rank());
  };
  const io::TensorMap states = optimizer_->state_dict();
  shard::RankCheckpoint saved{.step = step_,
                              .sections = {{"model", sharded_ ? sharded_->model_pieces() : share(tensors_of(model_))},
                                           {"optimizer", sharded_                  ? sharded_->state_pieces(states)
                                                         : shares_states(options_) ? io::whole_pieces(states)
                                                                                   : share(states)},
                                           {"random", share({{"torch", generator().get_state()}})}},
                              .state = {{"shape", shape_},
                                        {"recipe", options_.recipe},
                                        {"loss_scale", options_.loss_scale},
                                        {"grad_scaler", scaler_.state_dict()},
                                        {"seed", options_.seed},
                                        {"data_bytes", stream_.bytes()},
                                        {"data_sha256", stream_.digest()},
                                        {"cursor", {{"epoch", cursor.epoch}, {"index", cursor.index}}},
                                        {"configuration", options_.configuration}}};
  // A run that compresses nothing has no files of it.
  if (options_.compress != "none" && parallel_) saved.sections.emplace(kLeftOut, parallel_->left_out());
  return saved;
}

void Trainer::restore_model(const io::CheckpointReader& checkpoint) {
  StoredTensors tensors;
  if (const auto found = checkpoint.manifest().sections.find("model"); found != checkpoint.manifest().sections.end()) {
    for (const auto& [name, tensor] : found->second) tensors[name] = {tensor.dtype, tensor.shape};
  }
  check_parameters(shape_, tensors);
  if (sharded_) return sharded_->load_model(checkpoint);
  load_tensors(model_, checkpoint.read_section("model"));
}

void Trainer::restore_optimizer(const io::CheckpointReader& checkpoint) {
  if (sharded_) return optimizer_->load_state_dict(sharded_->load_states(checkpoint, optimizer_->state_dict()));
  io::TensorMap states;
  for (const auto& [name, tensor] : optimizer_->state_dict()) states.emplace(name, checkpoint.read("optimizer", name));
  optimizer_->load_state_dict(states);
}

void Trainer::restore(const io::CheckpointReader& checkpoint) {
  const json& state = checkpoint.state();
  expect_same(state, "shape", shape_);
  expect_same(state, "recipe", options_.recipe);
  expect_same(state, "seed", options_.seed);
  expect_same(state, "loss_scale", options_.loss_scale);
  expect_same(state, "data_bytes", stream_.bytes());
  // Older checkpoints do not say it.
  if (state.contains("data_sha256")) expect_same(state, "data_sha256", stream_.digest());
  try {
    restore_model(checkpoint);
    restore_optimizer(checkpoint);
    if (parallel_) parallel_->restore_left_out(checkpoint, kLeftOut);
    generator().set_state(checkpoint.read("random", "torch"));
    scaler_.load_state_dict(state.at("grad_scaler").get<std::map<std::string, double>>());
    const json& cursor = state.at("cursor");
    stream_.seek({.epoch = cursor.at("epoch").get<int64_t>(), .index = cursor.at("index").get<int64_t>()});
    io::check_mapped_files();
  } catch (const json::exception&) {
    fail("checkpoint: expected grad_scaler and a cursor {{epoch, index}} in state.json");
  }
  step_ = checkpoint.step();
}

}  // namespace plimsoll::app
