#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <optional>

#include "plimsoll/app/error.h"
#include "plimsoll/app/generate.h"
#include "plimsoll/cli/commands.h"
#include "plimsoll/cli/watch_option.h"

namespace plimsoll::cli {
namespace {

void write_byte(char byte) {
  if (std::putchar(byte) == EOF || std::fflush(stdout) != 0) app::fail("output: cannot write");
}

struct GenerateCommand {
  app::GenerateOptions options;
  watch::Mode watch = watch::Mode::kOff;
  std::filesystem::path json;
};

int run_generate(const GenerateCommand& command) {
  app::JsonLines lines = app::JsonLines::create(command.json);
  const watch::Session session({.mode = command.watch});
  for (const char byte : command.options.prompt) write_byte(byte);
  const std::optional<int64_t> not_finite = app::generate(command.options, write_byte);
  write_byte('\n');
  print_watch(session, lines);
  if (not_finite) {
    app::report_not_finite("generate: expected finite logits, got Inf or NaN after {} bytes", *not_finite);
  }
  return kExitOk;
}

}  // namespace

Command generate_command() {
  const auto command = std::make_shared<GenerateCommand>();
  app::GenerateOptions* const options = &command->options;
  constexpr Range<int64_t> kFromZero{.from = 0};
  return {
      .name = "generate",
      .summary = "Write text with a trained model",
      .options = {{"checkpoint", "DIR", path(options->checkpoint, PathMust::kExist),
                   "a checkpoint, or a run's directory", Need::kRequired},
                  {"prompt", "TEXT", text(options->prompt), "what to continue"},
                  {"tokens", "N", integer(options->tokens, kFromZero), "bytes to write"},
                  {"temperature", "X", number(options->sampling.temperature, {.from = 0, .to = 1000}),
                   "0: always the likeliest"},
                  {"top-k", "N", integer(options->sampling.top_k, kFromZero), "draw from the N likeliest; 0: from all"},
                  {"seed", "N", integer(options->seed, kFromZero), "of the draws"},
                  watch_option(command->watch),
                  {"json", "FILE", path(command->json), "write what the watch sees as one JSON object a line"}},
      .run = [command](const nlohmann::json&) { return run_generate(*command); }};
}

}  // namespace plimsoll::cli
