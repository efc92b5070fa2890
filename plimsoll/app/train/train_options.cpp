#include "plimsoll/app/train/train_options.h"

#include <cmath>
#include <stdexcept>

#include "plimsoll/amp/grad_scaler.h"
#include "plimsoll/app/error.h"
#include "plimsoll/models/families.h"

namespace plimsoll::app {

std::optional<std::filesystem::path> hugging_face_directory(const TrainOptions& options) {
  if (options.source.empty() && options.config_of.empty()) return std::nullopt;
  if (!options.config_of.empty() && (!options.source.empty() || !options.preset.empty())) {
    refuse("--config-of: expected no --model, got {}",
           options.preset.empty() ? options.source.native() : options.preset);
  }
  if (options.layers || options.dim || options.heads) {
    refuse("--layers, --dim, --heads: expected none, config.json has the model's sizes");
  }
  return options.source.empty() ? options.config_of : options.source;
}

models::Sizes sizes_of(const TrainOptions& options) {
  const models::Sizes& usual = options.model.sizes;
  return {.layers = options.layers.value_or(usual.layers),
          .dim = options.dim.value_or(usual.dim),
          .heads = options.heads.value_or(usual.heads),
          .context = options.context.value_or(usual.context)};
}

void check_loss_scale(const TrainOptions& options) {
  const amp::GradScalerOptions scaling = options.loss_scale.options(options.recipe.value);
  if (options.release_gradients && scaling.enabled) {
    const std::string got =
        options.loss_scale.text == "recipe" ? "that of --recipe " + options.recipe.text : options.loss_scale.text;
    refuse("--release-gradients: expected --loss-scale none, since a loss scale may skip a step, got {}", got);
  }
  const bool changes = scaling.enabled && scaling.min_scale < scaling.max_scale;
  if (options.loss_scale_hysteresis > 1 && !changes) {
    refuse("--loss-scale-hysteresis {}: expected a loss scale that changes, got {}", options.loss_scale_hysteresis,
           scaling.enabled ? options.loss_scale.text : "none");
  }
}

void check_masters(const TrainOptions& options) {
  if (options.masters == optim::MasterKind::kFp32) return;
  if (options.recipe.value.high_precision_format() == format::Format::kFp16) {
    refuse("--masters {}: expected a recipe without fp16, whose range is not that of bf16 weights, got {}",
           recipe::name_of(optim::kMasters, options.masters), options.recipe.text);
  }
}

const recipe::Recipe& recipe_of_step(const TrainOptions& options, int64_t step) {
  if (!options.finish_in) return options.recipe.value;
  const auto finishing = static_cast<int64_t>(std::ceil(options.finish_in->share * static_cast<double>(options.steps)));
  return step >= options.steps - finishing ? options.finish_in->recipe.value : options.recipe.value;
}

nlohmann::json finish_json(const TrainOptions& options) {
  if (!options.finish_in) return {};
  return nlohmann::json::array({options.finish_in->recipe.text, options.finish_in->share});
}

nlohmann::json shape_of(const TrainOptions& options) {
  try {
    return options.model.family->shape_of(sizes_of(options));
  } catch (const std::invalid_argument& error) {
    throw UsageError(error.what());
  }
}

}  // namespace plimsoll::app
