#include <cstdlib>
#include <memory>
#include <optional>

#include "plimsoll/app/error.h"
#include "plimsoll/app/process/interrupt.h"
#include "plimsoll/app/text/chat.h"
#include "plimsoll/app/text/sampling.h"
#include "plimsoll/app/text/text_writer.h"
#include "plimsoll/cli/audit_option.h"
#include "plimsoll/cli/chat_terminal.h"
#include "plimsoll/cli/commands.h"
#include "plimsoll/cli/json_option.h"
#include "plimsoll/cli/output.h"
#include "plimsoll/cli/report_errors.h"
#include "plimsoll/cli/report_option.h"
#include "plimsoll/cli/threads_option.h"
#include "plimsoll/cli/watch_option.h"
#include "plimsoll/tokenize/token_texts.h"

namespace plimsoll::cli {
namespace {

constexpr int64_t kTokens = 200;  // of a text that no option limits

struct GenerateCommand {
  app::TextModelOptions model;
  std::optional<std::string> prompt, system;
  bool chat = false;
  std::vector<std::string> models,
      lengths;  // options of --model and of --tokens, by each of their names, that were typed
  std::optional<int64_t> tokens, top_k;
  std::optional<double> temperature, top_p, repetition_penalty;
  app::WritingOptions writing;
  JsonTexts json_texts;
  int64_t threads = 0;
  watch::Mode watch = watch::Mode::kOff;
  std::filesystem::path json, audit;
};

const char* name_of(app::TextEnd end) {
  switch (end) {
    case app::TextEnd::kLength:
      return "length";
    case app::TextEnd::kToken:
      return "token";
    case app::TextEnd::kStop:
      return "stop";
    case app::TextEnd::kInterrupted:
      return "interrupted";
    case app::TextEnd::kNotFinite:
      return "not finite";
  }
  std::abort();
}

// Texts as they are written: to standard output, and to a log that has a line for each token and for each text.
class Output {
 public:
  Output(const app::TextModel& model, app::JsonLines& lines, bool logs) : model_(model), lines_(lines), logs_(logs) {}

  app::TextObserver observer() {
    app::TextObserver observer{.on_text = [](std::string_view text) { write_text(harmless(text)); }};
    if (!logs_) return observer;
    observer.on_token = [this,
                         texts = tokenize::TokenTexts(*model_.tokenizer)](const app::WrittenToken& token) mutable {
      lines_.write({{"id", token.id},
                    {"text", texts.of(token.id, tokenize::Specials::kWith).text},
                    {"log_probability", token.log_probability}});
      texts.follow(token.id);
    };
    return observer;
  }

  void finish(const app::WrittenText& written) {
    write_text("\n");
    if (logs_) lines_.write({{"text", written.text}, {"tokens", written.tokens}, {"end", name_of(written.end)}});
    if (written.end == app::TextEnd::kNotFinite) not_finite_ = written.tokens;
  }

  void report() const {
    if (!not_finite_) return;
    app::report_not_finite("generate: expected finite logits, got Inf or NaN after {}", counted(*not_finite_, "token"));
  }

 private:
  const app::TextModel& model_;
  app::JsonLines& lines_;
  bool logs_;
  std::optional<int64_t> not_finite_;  // tokens before
};

int exit_code_of(const app::WrittenText& written) {
  return written.end == app::TextEnd::kInterrupted ? kExitInterrupted : kExitOk;
}

int continue_prompt(const GenerateCommand& command, const app::TextModel& model, Output& output) {
  const std::string prompt = command.prompt.value_or("").empty() ? "\n" : *command.prompt;
  const std::vector<int64_t> ids = app::encode(model, prompt, tokenize::Specials::kWith, "--prompt");
  const auto count = static_cast<int64_t>(ids.size());
  if (count > model.model->context()) {
    app::refuse("--prompt: expected at most the {} tokens that the model sees, got {}", model.model->context(), count);
  }
  write_text(harmless(prompt));
  app::TextWriter writer(model, command.writing);
  const app::InterruptScope interrupt;
  app::TextObserver observer = output.observer();
  observer.interrupted = [&] { return interrupt.requested(); };
  const app::WrittenText written = writer.write(ids, observer);
  output.finish(written);
  return exit_code_of(written);
}

int chat(const GenerateCommand& command, const app::TextModel& model, Output& output) {
  const auto check_text = [&](const char* option, const std::optional<std::string>& text) {
    if (text) app::encode(model, *text, tokenize::Specials::kWithout, option);
  };
  check_text("--system", command.system);
  check_text("--prompt", command.prompt);
  app::Chat chat(model, command.writing, command.system);
  const auto reply = [&](const std::string& message, const std::function<bool()>& interrupted) {
    app::TextObserver observer = output.observer();
    observer.interrupted = interrupted;
    const app::WrittenText written = chat.reply(message, observer);
    output.finish(written);
    return written;
  };
  if (!command.prompt) {
    run_chat(reply, [&] { chat.reset(); });
    return kExitOk;
  }
  const app::InterruptScope interrupt;
  return exit_code_of(reply(*command.prompt, [&] { return interrupt.requested(); }));
}

void fill_sampling(GenerateCommand& command, const models::GenerationDefaults& defaults) {
  command.writing.sampling = app::chosen_sampling(
      defaults, {.temperature = command.temperature, .top_k = command.top_k, .top_p = command.top_p});
  command.writing.rules = defaults.rules;
  if (command.repetition_penalty) command.writing.rules.repetition_penalty = *command.repetition_penalty;
}

// An option has two names, of which one was typed, or none.
void expect_one_name(const std::vector<std::string>& typed) {
  if (typed.size() > 1) app::refuse("generate: expected {} or {}, got both", typed[0], typed[1]);
}

int run_generate(GenerateCommand& command) {
  expect_one_name(command.models);
  expect_one_name(command.lengths);
  if (command.system && !command.chat) app::refuse("--system: expected --chat, too");
  for (const std::string& stop : command.writing.stops) {
    if (stop.empty()) app::refuse("--stop: expected a text, got nothing");
  }
  use_threads(command.threads);
  app::JsonLines lines = app::JsonLines::create(command.json);
  AuditFile audit(command.audit);
  const watch::Session session({.mode = command.watch});
  const app::TextModel model = app::load_text_model(command.model);
  fill_sampling(command, model.generation);
  command.writing.format = format_of(command.json_texts, model);
  command.writing.max_new_tokens = command.tokens.value_or(command.chat ? model.model->context() : kTokens);
  Output output(model, lines, !command.json.empty());
  const int exit_code = command.chat ? chat(command, model, output) : continue_prompt(command, model, output);
  print_watch(session, lines);
  audit.write();
  output.report();
  return exit_code;
}

}  // namespace

Command generate_command() {
  const auto command = std::make_shared<GenerateCommand>();
  command->model.warn = print_warning;
  command->model.coded = models::CodedWeights::kHeld;
  app::WritingOptions* const writing = &command->writing;
  constexpr Range<int64_t> kFromZero{.from = 0};
  return {
      .name = "generate",
      .summary = "Write text with a model, or chat with it",
      .options =
          {{"model", "DIR", noted(path(command->model.path, PathMust::kExist), command->models),
            "a Hugging Face directory, a run's directory, or one of its checkpoints", Need::kRequired},
           {"checkpoint", "DIR", noted(path(command->model.path, PathMust::kExist), command->models),
            "another name of --model"},
           {"dtype", "NAME", choice(command->model.dtype, models::kWeightDtypes),
            "of a Hugging Face model's weights: stored, fp32, bf16, fp16, or codes: fp8, nvfp4 or mxfp4"},
           {"adapter", "DIR", path(command->model.adapter, PathMust::kExist),
            "a LoRA adapter of the model, as PEFT writes it: adapter_config.json and adapter_model.safetensors"},
           {"kv", "NAME", choice(writing->cache, app::kCacheFormats),
            "keys and values of the text: as they are computed, bf16, or fp8, codes with a scale a token"},
           {"prompt", "TEXT", text(command->prompt), "what to continue; with --chat: a message to reply to"},
           {"chat", "", toggle(command->chat),
            "talk with the model: messages are lines of standard input, /reset forgets them; Ctrl-C stops a reply, "
            "Ctrl-D ends the chat"},
           {"system", "TEXT", text(command->system), "what a chat begins with"},
           {"tokens", "N", noted(integer(command->tokens, kFromZero), command->lengths),
            "to write at most (200); chat: of each reply (as many as the model sees)"},
           {"max-new-tokens", "N", noted(integer(command->tokens, kFromZero), command->lengths),
            "another name of --tokens"},
           {"stop", "TEXT...", texts(writing->stops), "texts that end what is written, and are not shown"},
           {"temperature", "X", number(command->temperature, {.from = 0, .to = 1000}),
            "of the draws; 0: always the likeliest. What is not given, of this and the next three, is as the model's "
            "generation_config.json says; a Gpt's temperature is 0.8"},
           {"top-k", "N", integer(command->top_k, kFromZero), "draw from the N likeliest; 0: from all"},
           {"top-p", "X", number(command->top_p, {.from = 0, .to = 1}),
            "draw from as few as hold this share of the probability"},
           {"repetition-penalty", "X", number(command->repetition_penalty, {.from = 1e-3, .to = 1000}),
            "of the scores of tokens that stand in the text: beyond 1 against them, below 1 for them"},
           {"seed", "N", integer(writing->seed, {}), "of the draws"},
           json_object_option(command->json_texts),
           json_schema_option(command->json_texts),
           threads_option(command->threads),
           watch_option(command->watch),
           audit_option(command->audit),
           report_option(
               command->json,
               "one JSON object a line, each token with its log probability, each text, and what the watch sees,")},
      .run = [command](const nlohmann::json&) { return run_generate(*command); }};
}

}  // namespace plimsoll::cli
