#include "plimsoll/app/train/train.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <system_error>
#include <utility>
#include <vector>

#include "plimsoll/app/checkpoint/safetensors_in.h"
#include "plimsoll/app/error.h"
#include "plimsoll/app/json_lines.h"
#include "plimsoll/app/process/interrupt.h"
#include "plimsoll/app/process/process_memory.h"
#include "plimsoll/app/process/ranks.h"
#include "plimsoll/app/run_directory.h"
#include "plimsoll/app/same_run.h"
#include "plimsoll/app/text_windows.h"
#include "plimsoll/app/train/changed_options.h"
#include "plimsoll/app/train/first_model.h"
#include "plimsoll/app/train/trainer.h"
#include "plimsoll/io/checkpoint.h"
#include "plimsoll/io/error.h"
#include "plimsoll/kernels/limits/limits.h"
#include "plimsoll/models/load.h"
#include "plimsoll/ops/memory/caching_allocator.h"
#include "plimsoll/runtime/threads.h"
#include "plimsoll/shard/checkpoint/checkpoint_saver.h"
#include "plimsoll/shard/communicator/wire_bytes.h"

namespace plimsoll::app {
namespace {

using nlohmann::json;

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// A run from its options to its end.
class Run {
 public:
  Run(const TrainOptions& options, const RunBeginning& beginning, const TrainObserver& observer)
      : options_(options),
        ranks_(connect_ranks(options)),
        observer_(speaks(options) ? observer : silent()),
        data_(begin_with_data(beginning)),
        trainer_(options_, beginning.model(options_), std::move(data_), ranks_),
        saver_({.run = options.out, .keep = options.keep, .asynchronous = options.async_save},
               ranks_->split("checkpoints"), ranks_->rank()) {}

  std::optional<TrainSummary> operator()() {
    begin();
    const InterruptScope interrupt;
    while (trainer_.step() < options_.steps) {
      one_step();
      const bool stop = any_rank(interrupt.requested());
      if (stop || is_due(options_.save_every) || is_last()) save();
      if (stop && !is_last()) {
        saver_.wait();
        return std::nullopt;
      }
    }
    saver_.wait();
    const TrainSummary summary = summarise();
    if (options_.watch != watch::Mode::kOff && observer_.on_watch && has_steps()) {
      observer_.on_watch(trainer_.session());
    }
    write(to_json(summary));
    if (profile_ && profile_->steps() > 0 && speaks(options_)) report_profile();
    return summary;
  }

 private:
  static TrainObserver silent() {
    return {.on_step = [](const StepRecord&) {},
            .on_note = [](const std::string&) {},
            .on_profile = [](const ProfileReport&) {}};
  }

  // Checks and opens all that a run starts from. An error of one rank is an error on all ranks.
  std::unique_ptr<TrainingData> begin_with_data(const RunBeginning& beginning) {
    expect_same_run(options_, *ranks_);  // first: what follows then is right or wrong on all
    if (options_.threads > 0) runtime::set_threads(static_cast<int>(options_.threads));
    std::unique_ptr<TrainingData> data;
    begin_on_all(*ranks_, [&] {
      runtime::start_threads();
      std::error_code ignored;
      const std::filesystem::file_status out = std::filesystem::status(options_.out, ignored);
      if (std::filesystem::exists(out) && !std::filesystem::is_directory(out)) {
        refuse("--out {}: expected a directory, or a place for one, got a file", options_.out.native());
      }
      if (!options_.resume && !io::list_checkpoints(options_.out).empty()) {
        refuse("{}: expected a directory without checkpoints, or --resume", options_.out.native());
      }
      expect_no_other_weights();
      if (speaks(options_)) directory_.emplace(options_.out);  // before what takes minutes and says that all is well
      data = beginning.data(options_, ranks_->size());
    });
    expect_same_text(data->digest(), *ranks_);
    return data;
  }

  // A run leaves weights of its own beside its checkpoints.
  void expect_no_other_weights() const {
    if (!std::filesystem::is_directory(options_.out) || !io::list_checkpoints(options_.out).empty()) return;
    const std::vector<std::filesystem::path> weights = safetensors_in(options_.out);
    if (weights.empty()) return;
    refuse("--out {}: expected a directory without weights, which the run would replace, got {}", options_.out.native(),
           weights.front().filename().native());
  }

  void begin() {
    if (options_.resume) resume();
    if (trainer_.step() > options_.steps) {
      refuse("--steps: expected at least the {} steps that {} has done, got {}", trainer_.step(), options_.out.native(),
             options_.steps);
    }
    if (options_.offload == Offload::kCpu)
      observer_.on_note("--offload cpu: everything is in the memory of the CPU, nothing moves");
    if (options_.profile) profile_.emplace(options_.steps - trainer_.step());
    if (!speaks(options_)) return;
    lines_.emplace(trainer_.step() > 0 ? JsonLines::resume(options_.json, trainer_.step())
                                       : JsonLines::create(options_.json));
    directory_->keep();
    if (const auto source = hugging_face_directory(options_)) models::copy_companions(*source, options_.out);
  }

  void resume() {
    const auto latest = shard::open_latest_checkpoint(options_.out, *ranks_, ranks_->rank());
    if (!latest)
      return observer_.on_note(io::compose("{}: no checkpoint yet, starting at step 0", options_.out.native()));
    for (const std::string& line : latest->refused) observer_.on_note(line);
    trainer_.restore(latest->reader);
    const json& state = latest->reader.state();
    for (const std::string& line : changed_options(state.value("configuration", json()), options_.configuration)) {
      observer_.on_note(line);
    }
    const json scale = state.value("loss_scale", json());
    if (scale != options_.loss_scale.text) {  // a gauged one: others were refused
      observer_.on_note(
          io::compose("the loss scale was {}, from here on it is {}, for as many tokens as a step has now",
                      scale.dump(), json(options_.loss_scale.text).dump()));
    }
    measured_ = state.value("measured", json::object());
    observer_.on_note(io::compose("resuming after {}", latest->reader.directory().native()));
  }

  void one_step() {
    using Clock = std::chrono::steady_clock;
    const Clock::time_point start = Clock::now();
    const auto train_step = [this] { return trainer_.train_step(); };
    const int64_t sent_before = shard::bytes_on_the_wire();
    const double cpu_before = kernels::process_cpu_seconds();
    StepRecord record{.result = profile_ ? profile_->run(train_step) : train_step()};
    sent_bytes_ = shard::bytes_on_the_wire() - sent_before;
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    record.cpu_seconds = kernels::process_cpu_seconds() - cpu_before;
    record.step = trainer_.step();
    record.steps = options_.steps;
    loss_ = record.result.loss;
    record.tokens_per_s = static_cast<double>(record.result.tokens) / seconds;
    tokens_per_s_.push_back(record.tokens_per_s);
    if (is_due(options_.eval_every) || is_last()) record.val_loss = validation_loss_ = trainer_.validation_loss();
    write(to_json(record));
    if (record.result.warning) observer_.on_note(*record.result.warning);
    if (record.result.precision) {
      for (const ops::PrecisionChange& change : record.result.precision->changes) observer_.on_note(describe(change));
    }
    observer_.on_step(record);
  }

  bool has_steps() const { return !tokens_per_s_.empty(); }
  bool is_last() const { return trainer_.step() == options_.steps; }
  bool is_due(int64_t every) const { return every > 0 && trainer_.step() % every == 0; }

  void write(const json& line) {
    if (lines_) lines_->write(line);
  }

  bool any_rank(bool here) const {
    int32_t any = here ? 1 : 0;
    ranks_->all_reduce_max({&any, 1});
    return any != 0;
  }

  void save() {
    measure();
    shard::RankCheckpoint checkpoint = trainer_.checkpoint();
    checkpoint.state["measured"] = measured_;
    saver_.save(checkpoint);
  }

  void report_profile() {
    if (!options_.profile->empty()) write_trace(*options_.profile, *profile_);
    observer_.on_profile(report_of(*profile_, measure_all_limits()));
  }

  // A run that is resumed at its end has no steps to measure, so checkpoints carry what was.
  void measure() {
    if (!has_steps()) return;
    measured_ = {{"tokens_per_s", median(tokens_per_s_)},
                 {"saved_activation_bytes", trainer_.saved_activation_bytes().value_or(0)},
                 {"peak_rss_bytes", peak_rss_bytes()},
                 {"peak_tensor_bytes", caching_allocator_statistics().peak_bytes_in_use},
                 {"sent_bytes", sent_bytes_},
                 {"loss", *loss_}};
  }

  std::optional<double> final_loss() const {
    const auto found = measured_.find("loss");
    if (found == measured_.end()) return std::nullopt;
    return found->is_null() ? std::numeric_limits<double>::quiet_NaN() : found->get<double>();  // JSON has no NaN
  }

  TrainSummary summarise() {
    measure();  // memory of the last checkpoint, too
    return {.recipe = options_.recipe.text,
            .steps = trainer_.step(),
            .parameters = trainer_.parameters(),
            .final_loss = final_loss(),
            .final_val_loss = validation_loss_ ? validation_loss_ : trainer_.validation_loss(),
            .tokens_per_s = measured_.value("tokens_per_s", 0.0),
            .saved_activation_bytes = measured_.value("saved_activation_bytes", int64_t{0}),
            .peak_rss_bytes = measured_.value("peak_rss_bytes", peak_rss_bytes()),
            .peak_tensor_bytes = measured_.value("peak_tensor_bytes", caching_allocator_statistics().peak_bytes_in_use),
            .sent_bytes = measured_.value("sent_bytes", sent_bytes_),
            .precision = trainer_.precision_shares()};
  }

  TrainOptions options_;
  std::shared_ptr<const shard::Communicator> ranks_;
  TrainObserver observer_;
  std::optional<RunDirectory> directory_;  // of rank 0, for all
  std::unique_ptr<TrainingData> data_;     // the trainer's from the first step on
  Trainer trainer_;
  shard::CheckpointSaver saver_;
  std::optional<JsonLines> lines_;
  std::optional<StepProfile> profile_;
  std::vector<double> tokens_per_s_;              // of each step
  std::optional<double> loss_, validation_loss_;  // the last ones
  int64_t sent_bytes_ = 0;                        // in the last step
  json measured_ = json::object();
};

json or_null(const std::optional<double>& value) { return value ? json(*value) : json(); }

json slots_json(const std::vector<watch::Record>& records) {
  json slots = json::object();
  for (const watch::Record& record : records) {
    slots[record.name] = {{"format", format::info(record.format).name},
                          {"amax", std::isnan(record.headroom_bits) ? json() : json(record.amax)},
                          {"scale", 1.0 / double{record.inv_scale}},
                          {"headroom_bits", record.headroom_bits},
                          {"non_finite", record.non_finite}};
  }
  return slots;
}

}  // namespace

bool is_finite(const TrainSummary& summary) {
  return std::isfinite(summary.final_val_loss.value_or(0)) && std::isfinite(summary.final_loss.value_or(0));
}

std::optional<TrainSummary> train(const TrainOptions& options, const RunBeginning& beginning,
                                  const TrainObserver& observer) {
  return Run(options, beginning, observer)();
}

std::optional<TrainSummary> train(const TrainOptions& options, const TrainObserver& observer) {
  const auto windows = [](TrainOptions& run, int64_t /*ranks*/) {
    const int64_t context = training_context(run);
    return std::make_unique<TextWindows>(
        io::TokenStream(training_tokens(run), context, static_cast<uint64_t>(run.seed)), run.eval_windows);
  };
  return train(options, {.data = windows, .model = first_model}, observer);
}

json to_json(const StepRecord& record) {
  const StepResult& result = record.result;
  json line = {{"step", record.step},
               {"loss", result.loss},
               {"val_loss", or_null(record.val_loss)},
               {"lr", result.lr},
               {"grad_norm", result.grad_norm},
               {"tokens_per_s", record.tokens_per_s},
               {"cpu_s", record.cpu_seconds},
               {"headroom_bits", or_null(result.headroom_bits)},
               {"headroom_slot", result.headroom_slot}};
  if (result.loss_scale) line["loss_scale"] = *result.loss_scale;
  if (result.flushed_share) line["flushed_share"] = *result.flushed_share;
  if (result.precision) line["precision"] = to_json(*result.precision);
  if (!result.slots.empty()) line["slots"] = slots_json(result.slots);
  if (result.warning) line["warning"] = *result.warning;
  return line;
}

json to_json(const TrainSummary& summary) {
  json line = {{"recipe", summary.recipe},
               {"steps", summary.steps},
               {"parameters", summary.parameters},
               {"final_val_loss", or_null(summary.final_val_loss)},
               {"diverged", !is_finite(summary)},
               {"tokens_per_s", summary.tokens_per_s},
               {"saved_activation_bytes", summary.saved_activation_bytes},
               {"peak_rss_bytes", summary.peak_rss_bytes},
               {"peak_tensor_bytes", summary.peak_tensor_bytes},
               {"sent_bytes", summary.sent_bytes}};
  if (!summary.precision.is_null()) line["precision"] = summary.precision;
  return line;
}

}  // namespace plimsoll::app
