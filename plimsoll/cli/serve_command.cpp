#include <fmt/format.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "plimsoll/app/error.h"
#include "plimsoll/app/json_lines.h"
#include "plimsoll/app/process/interrupt.h"
#include "plimsoll/app/text/served_texts.h"
#include "plimsoll/app/text/text_writer.h"
#include "plimsoll/cli/adapters_field.h"
#include "plimsoll/cli/audit_option.h"
#include "plimsoll/cli/commands.h"
#include "plimsoll/cli/output.h"
#include "plimsoll/cli/report_errors.h"
#include "plimsoll/cli/report_option.h"
#include "plimsoll/cli/threads_option.h"
#include "plimsoll/cli/watch_option.h"
#include "plimsoll/io/error.h"
#include "plimsoll/models/lora/lora.h"
#include "plimsoll/serve/http/server.h"

namespace plimsoll::cli {
namespace {

constexpr double kGibibyte = 1 << 30;

struct ServeCommand {
  app::TextModelOptions model;
  std::vector<NamedAdapter> adapters;
  std::optional<std::string> api_key;
  serve::EngineOptions engine;
  serve::ServerOptions server;
  double memory = 1;  // GiB
  int64_t port = 8000, drain = 30;
  double request_timeout = 0;  // seconds
  int64_t threads = 0;
  std::filesystem::path json, audit;
};

// The model's chat template, or why there is none.
struct FoundTemplate {
  std::unique_ptr<tokenize::ChatTemplate> chat_template;
  std::string reason;
};

FoundTemplate find_chat_template(const std::filesystem::path& directory) {
  try {
    if (!tokenize::has_chat_template(directory)) return {.chat_template = nullptr, .reason = "no chat template"};
    return {.chat_template = std::make_unique<tokenize::ChatTemplate>(directory), .reason = {}};
  } catch (const io::Error& error) {
    return {.chat_template = nullptr, .reason = error.what()};
  }
}

// Options that a T5 has not.
void refuse_for_t5(const ServeCommand& command) {
  if (!command.adapters.empty()) {
    app::refuse("--adapter: expected a decoder-only model, got a T5, which has no adapters");
  }
  if (command.engine.cache != nn::CacheFormat::kAsGiven) {
    app::refuse("--kv: expected computed for a T5, whose layers read keys and values as they are computed, got {}",
                recipe::name_of(app::kCacheFormats, command.engine.cache));
  }
}

std::string name_of(const std::filesystem::path& path) {
  const std::filesystem::path whole = std::filesystem::canonical(path);
  return whole.filename().native();
}

int run_serve(ServeCommand& command) {
  if (command.engine.max_context > 0 && command.engine.max_context < serve::kLeastContext) {
    app::refuse("--max-context: expected 0, or at least {} for a prompt and its reply, got {}", serve::kLeastContext,
                command.engine.max_context);
  }
  if (command.api_key && command.api_key->empty()) {
    app::refuse("--api-key: expected a key of one character or more, got an empty one, which would let everybody in");
  }
  command.server.api_key = command.api_key.value_or("");
  command.server.port = static_cast<int>(command.port);
  serve::expect_free_address(command.server);
  use_threads(command.threads);
  app::JsonLines lines = app::JsonLines::create(command.json);
  std::mutex log;
  bool is_logged = !command.json.empty();
  command.server.log = [&](const nlohmann::json& line) {
    const std::lock_guard<std::mutex> lock(log);
    if (!is_logged) return;
    try {
      lines.write(line);
    } catch (const io::Error& error) {  // a full disk ends no replies
      is_logged = false;
      print_warning(fmt::format("requests are not logged any more: {}", error.what()));
    }
  };
  AuditFile audit(command.audit);
  const app::ServedTexts model = app::load_served_texts(command.model);
  if (model.decoder == nullptr) refuse_for_t5(command);
  const auto [chat_template, reason] = find_chat_template(model.directory);
  command.engine.memory = static_cast<int64_t>(command.memory * kGibibyte);
  command.engine.recipe = model.recipe;
  for (const auto& [name, directory] : command.adapters) {
    command.engine.adapters[name] = models::read_adapter(*model.decoder, directory);
  }
  command.server.request_timeout = std::chrono::duration<double>(command.request_timeout);
  // A thread each: for those that are served, those that wait, and a few that ask for something else.
  command.server.connections = command.engine.max_batch + command.engine.queue + 16;
  const app::InterruptScope interrupt;
  serve::Engine engine(model.model, command.engine);
  serve::JsonFormats formats(*model.tokenizer, engine.vocabulary());
  serve::Server server(engine,
                       {.name = name_of(command.model.path),
                        .model = model,
                        .chat_template = chat_template.get(),
                        .formats = formats,
                        .context = engine.context(),
                        .places = engine.places(),
                        .adapters = engine.adapters()},
                       command.server);
  if (chat_template == nullptr) {
    print_warning(fmt::format("{}: the page sends each text by itself, /v1/chat/completions is not served", reason));
  }
  write_text(fmt::format("{}: a chat and OpenAI's API at http://{}:{}; Ctrl-C ends it\n", name_of(command.model.path),
                         command.server.host, server.port()));
  while (!interrupt.requested()) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const app::InterruptScope impatience;
  write_text("stopping\n");
  server.stop(std::chrono::seconds(command.drain), [&] { return impatience.requested(); });
  audit.write();
  return kExitOk;
}

}  // namespace

Command serve_command() {
  const auto command = std::make_shared<ServeCommand>();
  command->model.warn = print_warning;
  command->model.coded = models::CodedWeights::kHeld;
  constexpr Range<int64_t> kFromZero{.from = 0};
  return {
      .name = "serve",
      .summary = "Serve a model over HTTP: OpenAI's API, and a page to chat on",
      .options =
          {{"model", "DIR", path(command->model.path, PathMust::kExist),
            "a Hugging Face directory, a run's directory, or one of its checkpoints", Need::kRequired},
           {"adapter", "[NAME=]DIR...", adapters(command->adapters),
            "LoRA adapters of the model, as PEFT writes them, for requests to the model MODEL:NAME; a name that is "
            "not given is the directory's. Requests to MODEL have none"},
           {"dtype", "NAME", choice(command->model.dtype, models::kWeightDtypes),
            "of a Hugging Face model's weights: stored, fp32, bf16, fp16, or codes: fp8, nvfp4 or mxfp4"},
           {"kv", "NAME", choice(command->engine.cache, app::kCacheFormats),
            "keys and values of the texts: as they are computed, bf16, or fp8, codes with a scale a token"},
           {"host", "NAME", text(command->server.host), "the address to listen at; 0.0.0.0: for other machines, too"},
           {"port", "N", integer(command->port, {.from = 0, .to = 65535}), "0: one that is free, which is shown"},
           {"api-key", "TEXT", text(command->api_key), "what clients must send as their key"},
           {"max-batch", "N", integer(command->engine.max_batch, {.from = 1, .to = models::kMostTextRows / 2}),
            fmt::format("requests that are written at once, 1 to {}", models::kMostTextRows / 2)},
           {"max-context", "N", integer(command->engine.max_context, kFromZero),
            "tokens of a prompt and its reply; 0: as many as the model sees, of a T5, which sees any number, 2048"},
           {"memory", "GIB", number(command->memory, {.from = 0, .to = 1 << 20}),
            "of keys and values. When it is full, the newest requests wait"},
           {"queue", "N", integer(command->engine.queue, {.from = 1, .to = 10'000}),
            "requests that may wait; further ones are answered 429"},
           {"request-timeout", "SECONDS", number(command->request_timeout, {.from = 0, .to = 1e6}),
            "that a reply may take, waiting included, before it is ended with the status 408; 0: any time"},
           {"drain", "SECONDS", integer(command->drain, {.from = 0, .to = 1'000'000}),
            "that replies may take to end after SIGTERM or Ctrl-C; a second one ends them at once"},
           threads_option(command->threads),
           watch_option(command->engine.watch),
           audit_option(command->audit),
           report_option(command->json, "one JSON object a line, each request with its status, times and tokens,")},
      .run = [command](const nlohmann::json&) { return run_serve(*command); }};
}

}  // namespace plimsoll::cli
