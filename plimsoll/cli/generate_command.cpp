#include <fmt/format.h>

#include <cstdio>
#include <memory>

#include "plimsoll/app/error.h"
#include "plimsoll/app/generate.h"
#include "plimsoll/cli/commands.h"

namespace plimsoll::cli {
namespace {

void write_byte(char byte) {
  if (std::putchar(byte) == EOF || std::fflush(stdout) != 0) app::fail("output: cannot write");
}

int run(const app::GenerateOptions& options) {
  for (const char byte : options.prompt) write_byte(byte);
  app::generate(options, write_byte);
  write_byte('\n');
  return kExitOk;
}

}  // namespace

Command generate_command() {
  const auto options = std::make_shared<app::GenerateOptions>();
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
                  {"seed", "N", integer(options->seed, kFromZero), "of the draws"}},
      .run = [options](const nlohmann::json&) { return run(*options); }};
}

}  // namespace plimsoll::cli
