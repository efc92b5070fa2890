#include "plimsoll/cli/train_run.h"

#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <string>
#include <system_error>

#include "plimsoll/app/error.h"
#include "plimsoll/app/process/ranks.h"
#include "plimsoll/app/train/train.h"
#include "plimsoll/cli/command.h"
#include "plimsoll/cli/output.h"
#include "plimsoll/cli/profile_table.h"
#include "plimsoll/cli/progress.h"
#include "plimsoll/cli/report_errors.h"
#include "plimsoll/cli/watch_option.h"
#include "plimsoll/runtime/thread_places.h"

namespace plimsoll::cli {

namespace {

// A preset's name comes before that of a folder.
void warn_of_a_folder(const app::TrainOptions& options) {
  if (!options.source.empty() || !options.config_of.empty() || !options.configuration.contains("model")) return;
  const auto& name = options.configuration["model"];
  std::error_code ignored;
  if (!name.is_string() || !std::filesystem::is_directory(name.get<std::string>(), ignored)) return;
  print_warning(fmt::format("the model is the preset {0}, not the folder of this name, which is --model ./{0}",
                            name.get<std::string>()));
}

}  // namespace

void print_configuration(const app::TrainOptions& options) {
  app::check_sharing(options);
  if (!app::speaks(options)) return;
  fmt::print("configuration {}\n", options.configuration.dump());
  warn_of_a_folder(options);
}

int train_and_print(const app::TrainOptions& options) {
  return print_training(options, [&](const app::TrainObserver& observer) { return app::train(options, observer); });
}

int print_training(const app::TrainOptions& options, const Training& training) {
  runtime::keep_threads_apart();
  Progress progress(options.recipe.text, options.log_every);
  std::optional<app::ProfileReport> profile;
  const auto summary = training({.on_step = [&](const app::StepRecord& record) { progress.step(record); },
                                 .on_note = [&](const std::string& line) { progress.note(line); },
                                 .on_row = [&](const std::string& line) { progress.row(line); },
                                 .on_profile = [&](const app::ProfileReport& report) { profile = report; },
                                 .on_watch =
                                     [&](const watch::Session& session) {
                                       app::JsonLines lines = app::JsonLines::create(options.out / "watch.jsonl");
                                       print_watch(session, lines);
                                     }});
  if (!summary) {
    progress.note(fmt::format("interrupted; a checkpoint is in {}, go on with --resume", options.out.native()));
    return kExitInterrupted;
  }
  if (!app::speaks(options)) return app::is_finite(*summary) ? kExitOk : kExitNotFinite;
  fmt::print(
      "{}  done: {}, {:.2f} M parameters, {}{:.0f} tokens/s, {:.1f} MB saved for backward, "
      "peak memory {:.0f} MB\n",
      summary->recipe, counted(summary->steps, "step"), static_cast<double>(summary->parameters) / 1e6,
      summary->final_val_loss ? fmt::format("validation loss {}, ", loss_text(*summary->final_val_loss)) : "",
      summary->tokens_per_s, static_cast<double>(summary->saved_activation_bytes) / 1e6,
      static_cast<double>(summary->peak_rss_bytes) / 1e6);
  if (profile) fmt::print("{}", profile_text(*profile));
  if (!app::is_finite(*summary)) {
    app::report_not_finite("{}: diverged: expected a finite loss after {}, got Inf or NaN in {}", summary->recipe,
                           counted(summary->steps, "step"),
                           std::isfinite(summary->final_val_loss.value_or(0)) ? "training" : "validation");
  }
  return kExitOk;
}

}  // namespace plimsoll::cli
