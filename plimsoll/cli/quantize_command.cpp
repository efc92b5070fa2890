#include <fmt/format.h>
#include <unistd.h>

#include <memory>
#include <optional>

#include "plimsoll/app/checkpoint/quantize_model.h"
#include "plimsoll/app/error.h"
#include "plimsoll/cli/commands.h"
#include "plimsoll/cli/output.h"
#include "plimsoll/cli/report_option.h"
#include "plimsoll/cli/threads_option.h"
#include "plimsoll/io/atomic_file.h"

namespace plimsoll::cli {
namespace {

struct QuantizeCommand {
  app::QuantizeOptions options;
  std::optional<int64_t> calibrate_tokens = {};
  std::filesystem::path json_file;
  int64_t threads = 0;
};

nlohmann::json to_json(const app::QuantizeSummary& summary) {
  return {{"matrices", summary.matrices},
          {"bytes_before", summary.bytes_before},
          {"bytes_after", summary.bytes_after},
          {"elements", summary.elements},
          {"coded_elements", summary.coded_elements},
          {"coded_bytes", summary.coded_bytes},
          {"bits_an_element", summary.bits()},
          {"seconds", summary.seconds}};
}

// One line that is rewritten on a terminal.
void show_progress(int64_t done, int64_t of) {
  if (isatty(STDERR_FILENO) == 0) return;
  fmt::print(stderr, "\r{} of {} parameters{}", done, of, done == of ? "\n" : "");
}

int run_quantize(QuantizeCommand& command) {
  if (command.calibrate_tokens) {
    if (command.options.calibrate.empty())
      app::refuse("--calibrate-tokens: expected --calibrate FILE with it, got none");
    command.options.calibrate_tokens = *command.calibrate_tokens;
  }
  use_threads(command.threads);
  std::optional<io::AtomicFile> sizes;  // a place that cannot be written is an error before the work
  if (!command.json_file.empty()) sizes.emplace(command.json_file);
  const app::QuantizeSummary summary = app::quantize_model(command.options);
  if (sizes) {
    sizes->write(to_json(summary).dump(2) + "\n");
    sizes->commit();
  }
  write_line(
      fmt::format("{}: {} as codes of {:.4g} bits an element, {:.2f} MB of weights in place of {:.2f} MB, {:.1f} s",
                  command.options.out.native(), counted(summary.matrices, "matrix", "matrices"), summary.bits(),
                  static_cast<double>(summary.bytes_after) / 1e6, static_cast<double>(summary.bytes_before) / 1e6,
                  summary.seconds));
  return kExitOk;
}

}  // namespace

Command quantize_command() {
  const auto command = std::make_shared<QuantizeCommand>();
  app::QuantizeOptions& options = command->options;
  options.on_parameter = show_progress;
  return {
      .name = "quantize",
      .summary = "Write a model as a Hugging Face directory whose matrices are FP8 or FP4 codes",
      .options = {{"model", "DIR", path(options.model, PathMust::kExist), "a Hugging Face directory", Need::kRequired},
                  {"out", "DIR", path(options.out), "the new directory", Need::kRequired},
                  {"format", "NAME", choice(options.format, app::kQuantizedFormats),
                   "of the codes: fp8 (a scale a row), fp8-block (128 x 128), nvfp4 or mxfp4"},
                  {"keep", "A,B", names(options.keep),
                   "modules that stay values, by name or the end of it: model.layers.0.mlp.down_proj, down_proj"},
                  {"dtype", "NAME", choice(options.dtype, app::kValueDtypes),
                   "of what stays values: bf16, fp16, fp32 or stored"},
                  {"rotate", "", toggle(options.rotate),
                   "spread outliers: a Hadamard matrix with random signs, folded into the weights; the head is untied"},
                  {"calibrate", "FILE", path(options.calibrate, PathMust::kExist),
                   "a text of at least 513 tokens on whose inputs the codes' errors are made up for (GPTQ)"},
                  {"calibrate-tokens", "N", integer(command->calibrate_tokens, {}),
                   "of that text, at most; at least 513; 16,384 if not given"},
                  threads_option(command->threads),
                  report_option(command->json_file, "the sizes")},
      .run = [command](const nlohmann::json&) { return run_quantize(*command); }};
}

}  // namespace plimsoll::cli
