#include "plimsoll/app/finetune/finetune.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>

#include "plimsoll/app/error.h"
#include "plimsoll/app/finetune/adapters.h"
#include "plimsoll/app/finetune/expect_memory.h"
#include "plimsoll/app/gauge/gauged_loss_scale.h"
#include "plimsoll/app/process/ranks.h"
#include "plimsoll/app/text/text_writer.h"
#include "plimsoll/app/train/first_model.h"
#include "plimsoll/app/train/trained_model.h"
#include "plimsoll/ops/memory/caching_allocator.h"

namespace plimsoll::app {
namespace {

int64_t steps_of(const FinetuneOptions& options, int64_t rows) {
  const auto rows_of_step = static_cast<double>(options.run.batch * options.run.accumulate);
  const double steps = std::ceil(options.epochs * static_cast<double>(rows) / rows_of_step);
  return options.steps.value_or(std::max<int64_t>(static_cast<int64_t>(steps), 1));
}

void set_steps(const FinetuneOptions& options, int64_t rows, TrainOptions& run) {
  run.steps = steps_of(options, rows);
  run.warmup = static_cast<int64_t>(std::ceil(options.warmup_share * static_cast<double>(run.steps)));
  const int64_t epoch = std::max<int64_t>((rows + run.batch * run.accumulate - 1) / (run.batch * run.accumulate), 1);
  if (run.eval_every == 0) run.eval_every = epoch;
  if (run.save_every == 0) run.save_every = epoch;
}

// Targets of a step in the mean.
double targets_a_step(const FinetuneOptions& options, const FinetuneData& data) {
  return static_cast<double>(data.counted) / static_cast<double>(data.examples->rows()) *
         static_cast<double>(options.run.batch * options.run.accumulate);
}

// Takes the loss scale of the model's certificate, where the recipe's would be dynamic. A certificate knows nothing of
// the gradients between the two matrices of an adapter. targets: of a rank's share of a step, whose gradients are its
// mean's. Nothing without a certificate of training.
std::optional<LossScale> take_gauged_loss_scale(const FinetuneOptions& options, double targets, TrainOptions& run) {
  if (options.lora || run.loss_scale.kind != LossScale::Kind::kOfRecipe) return std::nullopt;
  if (run.recipe.value.high_precision_format() != format::Format::kFp16) return std::nullopt;
  const auto scale = gauged_loss_scale(run.source, targets);
  if (!scale) return std::nullopt;
  expect_certified_weights(run.source, *models::load(run.source).model);
  release_cached_memory();  // of that model
  run.loss_scale = *scale;
  return scale;
}

FinetunePlan plan_of(const FinetuneOptions& options, const FinetuneData& data, int64_t steps, int64_t ranks) {
  const int64_t rows = data.examples->rows(), rows_of_step = options.run.batch * options.run.accumulate;
  const double epochs = static_cast<double>(rows_of_step * steps) / static_cast<double>(rows * ranks);
  return {.training = data.training,
          .held_out = data.held_out,
          .cut = data.cut,
          .skipped = data.skipped,
          .joined = data.joined,
          .tokens = data.tokens,
          .counted = data.counted,
          .context = data.context,
          .rows = rows,
          .steps = steps,
          .loss_scale = {},
          .targets_a_step = targets_a_step(options, data),
          .adapters = options.lora ? adapter_parameters(options) : 0,
          .memory = estimate_memory(options, std::max<int64_t>(options.run.batch / ranks, 1), ranks),
          .least_seconds = least_seconds(options, product_operations(options, static_cast<double>(data.tokens) * epochs,
                                                                     static_cast<double>(data.counted) * epochs))};
}

using Prompts = std::vector<std::vector<int64_t>>;

void show_replies(const TextModelOptions& path, const Prompts& prompts, bool is_trained,
                  const FinetuneObserver& observer) {
  constexpr int64_t kReplyTokens = 64;
  if (prompts.empty()) return;
  release_cached_memory();  // of the run before
  {
    const TextModel model = load_text_model(path);
    for (const std::vector<int64_t>& prompt : prompts) {
      TextWriter writer(model, {.sampling = {.temperature = 0}, .max_new_tokens = kReplyTokens});
      observer.on_reply({.is_trained = is_trained,
                         .prompt = model.tokenizer->decode(prompt, tokenize::Specials::kWith),
                         .reply = writer.write(prompt, {}).text});
    }
  }
  release_cached_memory();  // of the model
}

// The run's whole model, whose newest checkpoint is the last step's, in the dtype that the first one was stored in.
void save_directory(const TrainOptions& run) {
  const at::NoGradGuard no_grad;
  const auto dtype = models::load(run.source).dtype;
  const TrainedModel trained = load_trained_model(run.out);
  trained.model->module().to(dtype);
  models::save(*trained.model, run.out, {.source = run.source});
}

}  // namespace

std::optional<TrainSummary> finetune(const FinetuneOptions& options, const FinetuneObserver& observer) {
  check_adapters(options);
  const auto coded = options.lora ? models::CodedWeights::kHeld : models::CodedWeights::kRefused;
  const TextModelOptions untrained{.path = options.run.source, .dtype = options.base, .coded = coded};
  Prompts prompts;
  const auto open = [&](TrainOptions& run, int64_t ranks) -> std::unique_ptr<TrainingData> {
    FinetuneData data = read_finetune_data(options, *tokenizer_of(options));
    set_steps(options, data.examples->rows(), run);
    FinetunePlan plan = plan_of(options, data, run.steps, ranks);
    expect_memory(options, plan.memory, ranks);
    plan.loss_scale = take_gauged_loss_scale(options, plan.targets_a_step / static_cast<double>(ranks), run);
    check_loss_scale(run);  // before the plan is shown
    if (speaks(run)) {
      observer.on_plan(plan);
      prompts = data.examples->prompts(static_cast<size_t>(options.samples));
      show_replies(untrained, prompts, /*is_trained=*/false, observer);
    }
    return std::move(data.examples);
  };
  TrainOptions run = options.run;
  const auto begun = [&](const TrainOptions& ready) {
    return options.lora ? adapted_model(options) : first_model(ready);
  };
  if (options.lora) run.adapters = adapters_json(options);
  const auto summary = train(run, {.data = open, .model = begun}, observer.training);
  if (summary && speaks(run)) {
    options.lora ? save_adapters(options) : save_directory(run);
    TextModelOptions trained = options.lora ? untrained : TextModelOptions{.path = run.out};
    if (options.lora) trained.adapter = run.out;
    show_replies(trained, prompts, /*is_trained=*/true, observer);
  }
  return summary;
}

}  // namespace plimsoll::app
