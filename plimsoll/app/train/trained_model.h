// A model that a training run has saved.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "plimsoll/models/language_model.h"
#include "plimsoll/ops/scaling/precision_controller.h"
#include "plimsoll/recipe/recipe.h"

namespace plimsoll::app {

struct TrainedModel {
  int64_t step = 0;
  recipe::Recipe recipe;
  std::shared_ptr<models::LanguageModel> model;  // in eval()
  double high_precision_tail = 0;                // share of its last blocks that have no codes
};

// Whether this is a run with a checkpoint, or a checkpoint of one step.
bool is_run(const std::filesystem::path& path);

// Throws UsageError, which opens with `label`, for what is no Hugging Face directory: a run, a file, a directory without
// config.json. A run that has weights beside its checkpoints is refused, too: once it is resumed the checkpoints are newer.
void expect_hugging_face_directory(std::string_view label, const std::filesystem::path& path);

// The model of a run's newest good checkpoint, or of one step's directory. warn: one line for each newer checkpoint that is
// damaged. Throws Error or io::Error.
TrainedModel load_trained_model(const std::filesystem::path& path,
                                const std::function<void(const std::string&)>& warn = {});

// Formats of the next step of a run, or of one from that checkpoint, under the recipe `auto`; nullptr: it has another.
// Throws Error or io::Error.
std::shared_ptr<ops::PrecisionController> precision_of_run(const std::filesystem::path& path);

}  // namespace plimsoll::app
