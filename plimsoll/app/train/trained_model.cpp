#include "plimsoll/app/train/trained_model.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "plimsoll/app/error.h"
#include "plimsoll/app/parse_recipe.h"
#include "plimsoll/app/train/high_precision_tail.h"
#include "plimsoll/app/train/run_precision.h"
#include "plimsoll/io/checkpoint.h"
#include "plimsoll/io/mapping_guard.h"
#include "plimsoll/models/families.h"

namespace plimsoll::app {
namespace {

io::Checkpoint load_step(const std::filesystem::path& path, const std::function<void(const std::string&)>& warn = {}) {
  if (std::filesystem::exists(path / "manifest.json")) return io::load_checkpoint(path);
  auto latest = io::load_latest_checkpoint(path);
  if (!latest) fail("{}: expected a checkpoint or a run with one, got none", path.native());
  if (warn) std::ranges::for_each(latest->refused, warn);
  return std::move(latest->checkpoint);
}

// Formats of a run that chose them product by product are known to it alone.
recipe::Recipe recipe_of_run(const std::string& text) { return parse_training_recipe(text).wide(); }

}  // namespace

bool is_run(const std::filesystem::path& path) {
  return std::filesystem::exists(path / "manifest.json") || !io::list_checkpoints(path).empty();
}

void expect_hugging_face_directory(std::string_view label, const std::filesystem::path& path) {
  const auto got = [&](const std::string& what) { refuse("{}: expected a Hugging Face directory, {}", label, what); };
  if (!std::filesystem::is_directory(path)) got(io::compose("got {}, which is no directory", path.native()));
  if (is_run(path)) got(io::compose("which plimsoll convert makes of a run, got the run {}", path.native()));
  if (!std::filesystem::exists(path / "config.json")) got(io::compose("got {} without config.json", path.native()));
}

TrainedModel load_trained_model(const std::filesystem::path& path,
                                const std::function<void(const std::string&)>& warn) {
  const io::Checkpoint checkpoint = load_step(path, warn);
  try {
    TrainedModel trained{.step = checkpoint.step,
                         .recipe = recipe_of_run(checkpoint.state.at("recipe").get<std::string>()),
                         .model = nullptr,
                         .high_precision_tail = checkpoint.state.value("high_precision_tail", 0.0)};
    if (checkpoint.state.contains("adapters") && !checkpoint.state["adapters"].is_null()) {
      refuse(
          "{}: expected a run of a whole model, got one of adapters: type --model BASE --adapter RUN, after finetune "
          "--resume if it was interrupted",
          path.native());
    }
    const nlohmann::json& shape = checkpoint.state.at("shape");
    const io::TensorMap& tensors = checkpoint.sections.at("model");
    models::family_of(shape).check(shape, models::stored(tensors));
    trained.model = models::make_language_model(shape, 0);
    models::load_tensors(trained.model->module(), tensors);
    io::check_mapped_files();
    keep_tail_in_high_precision(*trained.model, trained.high_precision_tail);
    trained.model->module().eval();
    return trained;
  } catch (const nlohmann::json::exception&) {
    fail("{}: expected the state of a training run, got another checkpoint", path.native());
  } catch (const std::invalid_argument& error) {
    refuse("{}", error.what());
  } catch (const std::out_of_range&) {
    fail("{}: expected a checkpoint with a model", path.native());
  }
}

std::shared_ptr<ops::PrecisionController> precision_of_run(const std::filesystem::path& path) {
  const io::Checkpoint checkpoint = load_step(path);
  const auto recipe = checkpoint.state.find("recipe");
  if (recipe == checkpoint.state.end() || !recipe->is_string()) return nullptr;
  const auto text = recipe->get<std::string>();
  if (!recipe::is_automatic(text)) return nullptr;
  auto precision = std::make_shared<ops::PrecisionController>(*parse_training_recipe(text).automatic);
  app::restore(*precision, checkpoint.step, checkpoint.state.value("precision", nlohmann::json()));
  return precision;
}

}  // namespace plimsoll::app
