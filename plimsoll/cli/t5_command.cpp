#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cmath>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "plimsoll/app/error.h"
#include "plimsoll/app/json_lines.h"
#include "plimsoll/app/t5/t5.h"
#include "plimsoll/cli/audit_option.h"
#include "plimsoll/cli/commands.h"
#include "plimsoll/cli/output.h"
#include "plimsoll/cli/report_errors.h"
#include "plimsoll/cli/report_option.h"
#include "plimsoll/cli/threads_option.h"
#include "plimsoll/cli/watch_option.h"
#include "plimsoll/models/t5/load.h"

namespace plimsoll::cli {
namespace {

enum class Task : uint8_t { kGenerate, kEncode, kScore };
constexpr std::array<recipe::Named<std::optional<Task>>, 3> kTasks = {
    {{"generate", Task::kGenerate}, {"encode", Task::kEncode}, {"score", Task::kScore}}};

struct T5Command {
  app::T5Options options;
  std::optional<Task> task;
  std::optional<std::string> input, target, bad_words;
  std::optional<double> temperature, top_p;
  std::optional<int64_t> top_k;
  bool stream = false;
  int64_t threads = 0;
  std::filesystem::path json, audit;
  watch::Mode watch = watch::Mode::kOff;
};

// Inputs whose results are not finite.
struct NotFiniteInputs {
  int64_t first = -1, count = 0;

  void add(int64_t input, bool is_finite) {
    if (is_finite) return;
    if (count++ == 0) first = input;
  }
  void report(std::string_view task) const {
    if (count == 0) return;
    app::report_not_finite("t5 {}: expected finite results, got Inf or NaN for {}, the first is input {}", task,
                           counted(count, "input"), first);
  }
};

void generate(const T5Command& command, app::JsonLines& lines, NotFiniteInputs& bad) {
  const auto report = [&](const app::T5Written& written) {
    bad.add(written.input, written.finite);
    nlohmann::json line = {{"input", written.input}, {"ids", written.ids}, {"text", written.text.value_or("")}};
    if (written.score) line["score"] = *written.score;
    lines.write(line);
    if (command.stream) return write_line("");
    write_line(written.text ? *written.text : fmt::format("{}", fmt::join(written.ids, " ")));
  };
  app::t5_generate(command.options, report, command.stream ? write_text : std::function<void(const std::string&)>());
}

void score(const T5Command& command, app::JsonLines& lines, NotFiniteInputs& bad) {
  if (!command.target) app::refuse("t5 score: expected --target TEXT|FILE");
  app::t5_score(command.options, [&](const app::T5Score& score) {
    const double mean = score.log_probability / static_cast<double>(score.tokens);
    bad.add(score.input, std::isfinite(score.log_probability));
    lines.write({{"input", score.input}, {"tokens", score.tokens}, {"log_probability", score.log_probability}});
    write_line(fmt::format("log probability {:.6g} over {}, {:.6g} a token", score.log_probability,
                           counted(score.tokens, "token"), mean));
  });
}

void encode(const T5Command& command, app::JsonLines& lines, NotFiniteInputs& bad) {
  app::t5_encode(command.options, [&](const app::T5Encoding& encoding) {
    bad.add(encoding.input, std::isfinite(encoding.rms) && std::isfinite(encoding.amax));
    lines.write(
        {{"input", encoding.input}, {"tokens", encoding.tokens}, {"rms", encoding.rms}, {"amax", encoding.amax}});
    write_line(
        fmt::format("{}, rms {:.4g}, amax {:.4g}", counted(encoding.tokens, "token"), encoding.rms, encoding.amax));
  });
}

// An option that says how to draw makes generation draw.
void fill_sampling(const T5Command& command, models::T5GenerationOptions& generation) {
  generation.samples |= command.temperature || command.top_k || command.top_p;
  nn::SamplingOptions& sampling = generation.sampling;
  sampling.temperature = command.temperature.value_or(sampling.temperature);
  sampling.top_k = command.top_k.value_or(sampling.top_k);
  sampling.top_p = command.top_p.value_or(sampling.top_p);
}

// Options that are of one task alone.
constexpr std::array<std::pair<std::string_view, Task>, 15> kOptionsOfTasks = {{
    {"target", Task::kScore},
    {"out", Task::kEncode},
    {"max-new-tokens", Task::kGenerate},
    {"min-new-tokens", Task::kGenerate},
    {"beams", Task::kGenerate},
    {"length-penalty", Task::kGenerate},
    {"early-stopping", Task::kGenerate},
    {"sample", Task::kGenerate},
    {"temperature", Task::kGenerate},
    {"top-k", Task::kGenerate},
    {"top-p", Task::kGenerate},
    {"repetition-penalty", Task::kGenerate},
    {"no-repeat-ngram-size", Task::kGenerate},
    {"bad-words", Task::kGenerate},
    {"stream", Task::kGenerate},
}};

void refuse_other_tasks(Task task, const nlohmann::json& given, const nlohmann::json& defaults) {
  for (const auto& [name, its_task] : kOptionsOfTasks) {
    const std::string key(name);
    if (its_task == task || given.value(key, nlohmann::json()) == defaults.value(key, nlohmann::json())) continue;
    app::refuse("t5 {}: expected no --{}, which is of t5 {}", recipe::name_of(kTasks, std::optional(task)), name,
                recipe::name_of(kTasks, std::optional(its_task)));
  }
}

// Options of the beams change nothing without any.
void expect_beams(const nlohmann::json& given, const nlohmann::json& defaults) {
  if (given.at("beams") != 1) return;
  for (const char* name : {"length-penalty", "early-stopping"}) {
    if (given.at(name) != defaults.at(name)) app::refuse("t5: expected --beams of 2 or more beside --{}, got 1", name);
  }
}

int run_t5(T5Command& command) {
  fill_sampling(command, command.options.generation);
  if (command.options.generation.beams > 1 && command.options.generation.samples) {
    app::refuse("t5: expected --beams or --sample, got both");
  }
  const models::T5GenerationOptions& generation = command.options.generation;
  if (generation.rules.min_new_tokens > generation.max_new_tokens) {
    app::refuse("t5: expected --min-new-tokens of at most --max-new-tokens, got {} and {}",
                generation.rules.min_new_tokens, generation.max_new_tokens);
  }
  command.options.input = command.input.value_or("");
  command.options.target = command.target.value_or("");
  command.options.bad_words = command.bad_words.value_or("");
  use_threads(command.threads);
  app::JsonLines lines = app::JsonLines::create(command.json);
  AuditFile audit(command.audit);
  const watch::Session session({.mode = command.watch});
  NotFiniteInputs bad;
  switch (*command.task) {
    case Task::kGenerate:
      generate(command, lines, bad);
      break;
    case Task::kScore:
      score(command, lines, bad);
      break;
    case Task::kEncode:
      encode(command, lines, bad);
      break;
  }
  print_watch(session, lines);
  audit.write();
  bad.report(recipe::name_of(kTasks, command.task));
  return kExitOk;
}

}  // namespace

Command t5_command() {
  const auto command = std::make_shared<T5Command>();
  app::T5Options& options = command->options;
  options.warn = print_warning;
  models::T5GenerationOptions& generation = options.generation;
  constexpr Range<int64_t> kFromZero{.from = 0}, kFromOne{.from = 1, .to = 1 << 20};
  Command result{
      .name = "t5",
      .summary = "Read and write text with a T5: generate, encode (the encoder's outputs) or score (a target)",
      .options = {{"task", "generate|encode|score", choice(command->task, kTasks), "what to do", Need::kPositional},
                  {"model", "DIR", path(options.model, PathMust::kExist), "a Hugging Face directory", Need::kRequired},
                  {"input", "TEXT|FILE", text(command->input),
                   "a text, or a file with one a line (*.jsonl: objects with a text or input_ids)", Need::kRequired},
                  {"target", "TEXT|FILE", text(command->target), "score: of each input"},
                  {"dtype", "NAME", choice(options.dtype, models::kT5Dtypes),
                   "of the weights: stored, fp32, bf16, fp16, fp8, nvfp4 or mxfp4"},
                  {"fixes", "NAME", choice(options.numerics, models::kT5Fixes),
                   "against overflow in fp16: seed (t5_fixes), gauge (the model is gauged) or none"},
                  {"batch", "N", integer(options.batch, kFromOne), "inputs at a time"},
                  {"max-new-tokens", "N", integer(generation.max_new_tokens, {.from = 0, .to = 1 << 24}),
                   "of each text"},
                  {"beams", "N", integer(generation.beams, kFromOne),
                   "texts written side by side, of which the best wins"},
                  {"length-penalty", "X", number(generation.length_penalty, {.from = -100, .to = 100}),
                   "beams: score = log probability / length^X"},
                  {"early-stopping", "NAME", choice(generation.early_stopping, models::kEarlyStoppings),
                   "beams: stop when none is likely to improve, when as many as beams are finished, or when none can"},
                  {"sample", "", toggle(generation.samples),
                   "draw tokens instead of taking the likeliest; each of the next three does, too"},
                  {"temperature", "X", number(command->temperature, {.from = 0, .to = 1000}), "of the draws (1)"},
                  {"top-k", "N", integer(command->top_k, kFromZero), "draw from the N likeliest (50); 0: from all"},
                  {"top-p", "X", number(command->top_p, {.from = 0, .to = 1}),
                   "draw from as few as hold this share of the probability (1)"},
                  {"seed", "N", integer(generation.seed, kFromZero), "of the draws"},
                  {"repetition-penalty", "X", number(generation.rules.repetition_penalty, {.from = 1e-3, .to = 1000}),
                   "of the scores of tokens that were written: beyond 1 against them, below 1 for them"},
                  {"no-repeat-ngram-size", "N", integer(generation.rules.no_repeat_ngram_size, kFromZero),
                   "write no run of N tokens twice; 0: no such rule"},
                  {"min-new-tokens", "N", integer(generation.rules.min_new_tokens, {.from = 0, .to = 1 << 24}),
                   "of each text"},
                  {"bad-words", "TEXT|FILE", text(command->bad_words),
                   "texts that are never written: as --input, one or one a line"},
                  {"stream", "", toggle(command->stream), "generate: write each text as it comes, one input at a time"},
                  {"out", "FILE", path(options.out), "encode: write the outputs as a new safetensors file"},
                  threads_option(command->threads),
                  watch_option(command->watch),
                  audit_option(command->audit),
                  report_option(command->json, "one JSON object a result")},
      .run = {}};
  result.run = [command, defaults = configuration(result.options)](const nlohmann::json& given) {
    refuse_other_tasks(*command->task, given, defaults);
    expect_beams(given, defaults);
    return run_t5(*command);
  };
  return result;
}

}  // namespace plimsoll::cli
