#include "plimsoll/app/audit.h"

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/randint.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "plimsoll/amp/fp8_autocast.h"
#include "plimsoll/app/error.h"
#include "plimsoll/app/train/high_precision_tail.h"
#include "plimsoll/app/train/trained_model.h"
#include "plimsoll/models/load.h"
#include "plimsoll/ops/scaling/precision_controller.h"
#include "plimsoll/ops/watch/audited_torch.h"

namespace plimsoll::app {
namespace {

at::Tensor random_tokens(const models::LanguageModel& model, int64_t count) {
  return at::randint(0, vocabulary_of(model), {1, count}, at::kLong);
}

void train_once(const TextModel& model, const amp::Fp8AutocastOptions& formats, int64_t count) {
  model.model->module().train();
  at::Tensor loss;
  {
    amp::Fp8Autocast scope(formats);
    loss = model.model->loss(random_tokens(*model.model, count), random_tokens(*model.model, count));
  }
  loss.backward();
}

// Under `auto` a run's products have the formats of its next step, others' those of a first one; nullptr: another recipe.
std::shared_ptr<ops::PrecisionController> precision_of(const AuditOptions& options) {
  if (!options.recipe) return is_run(options.model.path) ? precision_of_run(options.model.path) : nullptr;
  if (!options.recipe->automatic) return nullptr;
  return std::make_shared<ops::PrecisionController>(*options.recipe->automatic);
}

amp::Fp8AutocastOptions formats_of_training(const AuditOptions& options, const TextModel& model) {
  if (auto precision = precision_of(options)) return {.recipe = precision->recipe().at({}), .precision = precision};
  return {.recipe = options.recipe ? options.recipe->value : model.recipe.value_or(recipe::Recipe())};
}

void generate_once(const TextModel& model, const std::optional<recipe::Recipe>& recipe, int64_t count) {
  std::optional<amp::Fp8Autocast> scope;
  if (recipe) scope.emplace(amp::Fp8AutocastOptions{.recipe = *recipe});
  models::TokenCache cache = model.model->make_cache({.capacity = count + 1});
  model.model->extend(random_tokens(*model.model, count), cache);
  model.model->extend(random_tokens(*model.model, 1), cache);
}

}  // namespace

void audit_model(const AuditOptions& options, watch::Audit& audit) {
  const bool trains = options.as == AuditAs::kTrain;
  TextModelOptions loading = options.model;
  if (trains && !loading.adapter.empty()) refuse("--adapter: expected --as generate, got train");
  if (trains && loading.dtype != models::WeightDtype::kAsStored) {
    refuse("--dtype {}: expected --as generate, since training has weights of fp32, got train",
           recipe::name_of(models::kWeightDtypes, loading.dtype));
  }
  if (trains && !is_run(loading.path) && models::has_coded_weights(loading.path)) {
    refuse("--as train: expected weights that are values, got codes; --as generate audits them");
  }
  if (trains && !is_run(loading.path)) loading.dtype = models::WeightDtype::kFp32;
  if (!trains) loading.coded = models::CodedWeights::kHeld;
  const TextModel model = load_model(loading);
  const int64_t most = model.model->context() - (trains ? 0 : 1);
  if (options.tokens > most)
    refuse("--tokens: expected at most the {} that the model sees, got {}", most, options.tokens);
  at::manual_seed(1);
  const watch::AuditRecording recording(&audit);
  const ops::AuditedTorch torch_rows;
  if (trains) {
    if (options.recipe) keep_tail_in_high_precision(*model.model, high_precision_tail(*options.recipe));
    train_once(model, formats_of_training(options, model), options.tokens);
  } else {
    const at::NoGradGuard no_grad;
    generate_once(model, options.recipe ? options.recipe->wide() : model.recipe, options.tokens);
  }
}

}  // namespace plimsoll::app
