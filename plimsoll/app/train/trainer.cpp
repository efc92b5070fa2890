#include "plimsoll/app/train/trainer.h"

#include <ATen/Context.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "plimsoll/amp/fp8_autocast.h"
#include "plimsoll/app/error.h"
#include "plimsoll/app/expect_same.h"
#include "plimsoll/app/train/high_precision_tail.h"
#include "plimsoll/io/error.h"
#include "plimsoll/io/mapping_guard.h"
#include "plimsoll/ops/linear/no_kept_weights.h"
#include "plimsoll/ops/memory/saved_bytes.h"
#include "plimsoll/ops/scaling/precision_json.h"
#include "plimsoll/ops/scaling/rank_amaxes.h"
#include "plimsoll/ops/tensor/random_seed.h"
#include "plimsoll/optim/schedule.h"
#include "plimsoll/runtime/rounding_words.h"
#include "plimsoll/watch/profile.h"

namespace plimsoll::app {
namespace {

using nlohmann::json;

// The last learning rate, as a share of the peak.
constexpr double kFinalShare = 0.1;

at::Generator generator() { return at::globalContext().defaultGenerator(at::kCPU); }

// Random numbers that no other rank draws, while it lives: gradients that all ranks rounded by the same ones would err
// together. Afterwards the generator is again where those of the other ranks are.
class RandomOfRank {
 public:
  explicit RandomOfRank(int64_t rank) {
    const auto drawn = static_cast<uint64_t>(ops::draw_seed());
    after_ = generator().get_state();
    at::manual_seed(runtime::RoundingWords{.seed = drawn, .step = static_cast<uint64_t>(rank)}.keys(0).first);
  }
  ~RandomOfRank() { generator().set_state(after_); }
  RandomOfRank(const RandomOfRank&) = delete;
  RandomOfRank& operator=(const RandomOfRank&) = delete;

 private:
  at::Tensor after_;
};

// Folder for the parts that are not in memory, made in the run's directory; nullopt where all are in memory.
std::optional<std::filesystem::path> make_offload_folder(const TrainOptions& options) {
  if (options.offload != Offload::kDisk) return std::nullopt;
  std::filesystem::create_directories(options.out);
  return options.out;
}

// The loss scale, and the dtype of what lies between products, are those of the whole run.
void check_finish(const TrainOptions& options) {
  if (!options.finish_in) return;
  if (options.recipe.automatic) refuse("--finish-in: expected a recipe other than auto, which ends as it finds best");
  const auto is_fp16 = [](const recipe::Recipe& recipe) {
    return recipe.high_precision_format() == format::Format::kFp16;
  };
  if (is_fp16(options.recipe.value) != is_fp16(options.finish_in->recipe.value)) {
    refuse("--finish-in: expected a recipe with fp16 if --recipe has it, and none if it has not, got {} after {}",
           options.finish_in->recipe.text, options.recipe.text);
  }
}

// The model whose parameters the optimizer updates: without FP32 masters they are BF16. Its tail has no codes.
std::shared_ptr<models::LanguageModel> with_weights_of(const TrainOptions& options,
                                                       std::shared_ptr<models::LanguageModel> model) {
  check_finish(options);
  keep_tail_in_high_precision(*model, high_precision_tail(options));
  check_masters(options);
  if (options.masters == optim::MasterKind::kFp32) return model;
  for (at::Tensor& parameter : model->module().parameters()) parameter.set_data(parameter.to(at::kBFloat16));
  return model;
}

Placement placement_of(const TrainOptions& options) {
  return {.sharing = options.shard,
          .adamw = torch::optim::AdamWOptions(options.lr).betas({0.9, 0.95}).weight_decay(options.weight_decay),
          .seed = static_cast<uint64_t>(options.seed),
          .optimizer_state = options.optimizer_state,
          .masters = options.masters,
          .releases_gradients = options.release_gradients,
          .compression = options.compress,
          .offload_folder = make_offload_folder(options)};
}

models::ParameterShapes trained_shapes(const torch::nn::Module& model) {
  models::ParameterShapes shapes;
  for (const auto& item : model.named_parameters()) {
    if (item.value().requires_grad()) shapes.emplace(item.key(), item.value().sizes().vec());
  }
  return shapes;
}

int64_t count_parameters(const torch::nn::Module& model) {
  int64_t count = 0;
  for (const at::Tensor& parameter : model.parameters()) count += parameter.numel();
  return count;
}

amp::GradScalerOptions scaler_options(const TrainOptions& options, const PlacedModel& placed) {
  check_loss_scale(options);
  amp::GradScalerOptions scaling = options.loss_scale.options(options.recipe.value);
  scaling.ranks = placed.gradient_ranks();
  scaling.hysteresis = options.loss_scale_hysteresis;
  return scaling;
}

}  // namespace

Trainer::Trainer(const TrainOptions& options, std::shared_ptr<models::LanguageModel> model,
                 std::unique_ptr<TrainingData> data, std::shared_ptr<const shard::Communicator> ranks)
    : options_(options),
      data_(std::move(data)),
      ranks_(std::move(ranks)),
      model_(with_weights_of(options, std::move(model))),
      parameters_(count_parameters(model_->module())),
      trained_(trained_shapes(model_->module())),
      placed_(place_model(model_, ranks_, placement_of(options))),
      precision_(make_precision(options)),
      scaler_(scaler_options(options, *placed_)),
      session_({.mode = options.watch == watch::Mode::kOff ? watch::Mode::kGuard : options.watch}) {
  model_->checkpoint_activations(options.checkpoint_activations);
  if (ranks_->size() == 1) return;
  if (options.batch % ranks_->size() != 0) {
    refuse("--batch: expected a multiple of the {} ranks, which share it, got {}", ranks_->size(), options.batch);
  }
  amax_reduction_ = ops::amax_reduction(ranks_);
}

at::Tensor Trainer::forward_loss(const TrainingBatch& batch, std::optional<bool> is_first_microbatch) {
  amp::Fp8Autocast scope(
      {.recipe = recipe_of_step(options_, step_), .reduction = amax_reduction_, .precision = precision_});
  return placed_->loss(batch, is_first_microbatch);
}

TrainingStep Trainer::next_step() {
  const watch::Span phase("data");
  const watch::Span span("token stream");
  return data_->next(
      {.batch = options_.batch, .passes = options_.accumulate, .rank = ranks_->rank(), .ranks = ranks_->size()});
}

at::Tensor Trainer::counted_loss(const TrainingBatch& batch, std::optional<bool> is_first_microbatch) {
  const watch::Span span("forward");
  std::optional<RandomOfRank> random;
  if (ranks_->size() > 1 && recipe_of_step(options_, step_).is_random()) random.emplace(ranks_->rank());
  if (saved_activation_bytes_) return forward_loss(batch, is_first_microbatch);
  const ops::SavedBytesCounter counter(placed_->parameter_memory());
  const at::Tensor loss = forward_loss(batch, is_first_microbatch);
  saved_activation_bytes_ = counter.bytes();
  return loss;
}

double Trainer::micro_step(const TrainingStep& step, size_t pass) {
  const TrainingBatch& batch = step.passes[pass];
  // The sum over a rank's passes, and then the mean over the ranks, is the mean over all that counts in the step.
  const double divisor = step.weight / (batch.weight * static_cast<double>(ranks_->size()));
  const auto is_first = step.passes.size() > 1 ? std::optional(pass == 0) : std::nullopt;
  const at::Tensor loss = counted_loss(batch, is_first);
  const watch::Span span("backward");
  placed_->backward(scaler_.scale(loss / divisor), /*is_last=*/pass + 1 == step.passes.size());
  return loss.item<double>() / divisor;
}

double Trainer::mean_over_ranks(double value) const {
  const at::Tensor sum = at::scalar_tensor(value, at::kDouble);
  ranks_->all_reduce_(sum).wait();
  return sum.item<double>() / static_cast<double>(ranks_->size());
}

void Trainer::zero_grad() {
  const watch::Span phase("optimizer");
  const watch::Span span("zero grad");
  placed_->optimizer().zero_grad();
}

optim::StepReport Trainer::update() {
  const watch::Span phase("optimizer");
  const optim::StepReport report = scaler_.step(placed_->optimizer(), {.max_norm = options_.clip});
  scaler_.update();
  return report;
}

StepResult Trainer::train_step() {
  StepResult result;
  result.lr = optim::learning_rate({.decay = options_.schedule,
                                    .peak_lr = options_.lr,
                                    .final_lr = kFinalShare * options_.lr,
                                    .warmup_steps = options_.warmup,
                                    .total_steps = options_.steps},
                                   step_);
  placed_->optimizer().set_lr(result.lr);
  if (scaler_.is_enabled()) result.loss_scale = scaler_.get_scale();
  model_->module().train();
  zero_grad();
  session_.slots().clear();
  const TrainingStep step = next_step();
  result.tokens = step.tokens;
  for (size_t pass = 0; pass < step.passes.size(); ++pass) result.loss += micro_step(step, pass);
  result.loss = mean_over_ranks(result.loss);
  const optim::StepReport report = update();
  if (precision_ != nullptr) result.precision = choose_formats(report);
  if (scaler_.is_enabled()) result.flushed_share = scaler_.flushed_share();
  result.grad_norm = report.grad_norm;
  describe_numbers(result, report);
  ++step_;
  return result;
}

StepPrecision Trainer::choose_formats(const optim::StepReport& report) {
  StepPrecision chosen{.formats = ops::formats_of(*precision_)};
  if (report.skipped && scaler_.is_enabled()) {
    precision_->abandon_step(step_);  // the loss scale is to blame for what was not finite, and changes
    chosen.multiply_adds.assign(chosen.formats.size(), 0);
  } else {
    chosen.changes = precision_->end_step({.step = step_, .steps = options_.steps}, amax_reduction_.get());
    chosen.multiply_adds = precision_->step_multiply_adds();
  }
  if (is_logged()) chosen.layers = precision_->layers();
  return chosen;
}

nlohmann::json Trainer::precision_shares() const {
  return precision_ == nullptr ? json() : ops::shares_json(ops::formats_of(*precision_), precision_->multiply_adds());
}

bool Trainer::is_logged() const { return options_.log_scales > 0 && step_ % options_.log_scales == 0; }

void Trainer::describe_numbers(StepResult& result, const optim::StepReport& report) {
  for (const watch::Record& record : session_.slots().records()) {
    const double least = result.headroom_bits.value_or(std::numeric_limits<double>::infinity());
    if (!std::isfinite(record.headroom_bits) || record.headroom_bits >= least) continue;
    result.headroom_bits = record.headroom_bits;
    result.headroom_slot = record.name;
  }
  if (is_logged()) result.slots = session_.slots().records();
  if (report.skipped) {
    result.warning = io::compose("step {}: no update, {} gradient elements are not finite, the first in {}", step_ + 1,
                                 report.non_finite, report.first_non_finite);
    if (scaler_.is_enabled()) *result.warning += io::compose("; loss scale now {}", scaler_.get_scale());
  } else if (const auto records = session_.slots().non_finite(); !records.empty()) {
    result.warning = io::compose("step {}: {} holds values that are not finite", step_ + 1, records.front().name);
  }
}

std::optional<double> Trainer::validation_loss() {
  const at::NoGradGuard no_grad;
  const ops::NoKeptWeights no_copies;  // beside weights, gradients and states
  model_->module().eval();
  double sum = 0, weight = 0;
  for (const TrainingBatch& batch : data_->held_out(options_.batch)) {
    sum += forward_loss(batch, std::nullopt).item<double>() * batch.weight;
    weight += batch.weight;
  }
  if (weight == 0) return std::nullopt;
  return sum / weight;
}

shard::RankCheckpoint Trainer::checkpoint() const {
  shard::RankCheckpoint saved{.step = step_,
                              .sections = placed_->sections(),
                              .state = {{"shape", model_->shape()},
                                        {"recipe", options_.recipe.text},
                                        {"high_precision_tail", high_precision_tail(options_)},
                                        {"finish_in", finish_json(options_)},
                                        {"loss_scale", options_.loss_scale.text},
                                        {"is_loss_scale_gauged", options_.loss_scale.is_gauged},
                                        {"loss_scale_hysteresis", options_.loss_scale_hysteresis},
                                        {"moments", recipe::name_of(optim::kOptimizerStates, options_.optimizer_state)},
                                        {"masters", recipe::name_of(optim::kMasters, options_.masters)},
                                        {"adapters", options_.adapters},
                                        {"grad_scaler", scaler_.state_dict()},
                                        {"seed", options_.seed},
                                        {"configuration", options_.configuration}}};
  if (precision_ != nullptr) saved.state["precision"] = ops::state_of(*precision_);
  saved.state.update(data_->state());
  saved.sections.emplace("random",
                         shard::share_of_replicated({{"torch", generator().get_state()}}, *ranks_, ranks_->rank()));
  return saved;
}

void Trainer::check_parameters(const io::CheckpointReader& checkpoint) const {
  models::StoredTensors tensors;
  if (const auto found = checkpoint.manifest().sections.find("model"); found != checkpoint.manifest().sections.end()) {
    for (const auto& [name, tensor] : found->second) tensors[name] = {tensor.dtype, tensor.shape};
  }
  for (const auto& [name, shape] : trained_) models::check_stored(tensors, name, shape);
}

void Trainer::restore(const io::CheckpointReader& checkpoint) {
  const json& state = checkpoint.state();
  expect_same(state, "shape", model_->shape());
  expect_same(state, "recipe", options_.recipe.text);
  expect_same(state, "seed", options_.seed);
  // A gauged scale follows from the batch and the ranks, which may be others; then it begins anew.
  const bool is_same_scale = state.value("loss_scale", json()) == options_.loss_scale.text;
  if (!options_.loss_scale.is_gauged || state.value("is_loss_scale_gauged", json()) != true) {
    expect_same(state, "loss_scale", options_.loss_scale.text);
  }
  // Older checkpoints do not say these.
  expect_same(state, "high_precision_tail", high_precision_tail(options_), /*otherwise=*/0.0);
  expect_same(state, "finish_in", finish_json(options_));
  expect_same(state, "loss_scale_hysteresis", options_.loss_scale_hysteresis, /*otherwise=*/1);
  expect_same(state, "moments", recipe::name_of(optim::kOptimizerStates, options_.optimizer_state),
              /*otherwise=*/"fp32");
  expect_same(state, "masters", recipe::name_of(optim::kMasters, options_.masters), /*otherwise=*/"fp32");
  expect_same_adapters(state.value("adapters", json()), options_.adapters);
  try {
    data_->restore(state);
    check_parameters(checkpoint);
    placed_->load(checkpoint);
    generator().set_state(checkpoint.read("random", "torch"));
    const auto scaling = state.at("grad_scaler").get<std::map<std::string, double>>();
    if (is_same_scale) scaler_.load_state_dict(scaling);
    io::check_mapped_files();
  } catch (const json::exception&) {
    fail("checkpoint: expected grad_scaler and a cursor {{epoch, index}} in state.json");
  }
  step_ = checkpoint.step();
  if (precision_ != nullptr) app::restore(*precision_, step_, state.value("precision", json()));
}

}  // namespace plimsoll::app
