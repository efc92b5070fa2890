#include <fmt/format.h>

#include <cmath>
#include <memory>
#include <vector>

#include "plimsoll/app/error.h"
#include "plimsoll/app/json_lines.h"
#include "plimsoll/app/logprobs.h"
#include "plimsoll/cli/audit_option.h"
#include "plimsoll/cli/commands.h"
#include "plimsoll/cli/difference_option.h"
#include "plimsoll/cli/output.h"
#include "plimsoll/cli/report_errors.h"
#include "plimsoll/cli/report_option.h"
#include "plimsoll/cli/threads_option.h"

namespace plimsoll::cli {
namespace {

struct LogprobsCommand {
  app::LogprobsOptions options;
  app::ChosenRecipe recipe;  // empty text: none
  std::vector<std::filesystem::path> files;
  int64_t threads = 0;
  std::filesystem::path json, audit;
};

int print_logprobs_difference(const std::vector<std::filesystem::path>& files) {
  const app::LogprobsDifference difference = app::logprobs_difference(files[0], files[1]);
  if (!difference.first) {
    write_line(fmt::format("{}, all equal", counted(difference.tokens, "token")));
    return kExitOk;
  }
  write_line(fmt::format("{} of {} differ, token {} first; largest {:.3g} nats, mean of all {:.3g}",
                         difference.different, counted(difference.tokens, "token"), *difference.first,
                         difference.largest, difference.mean));
  return kExitFailed;
}

int run_logprobs(LogprobsCommand& command) {
  const app::LogprobsOptions& options = command.options;
  const bool has_model = !options.model.path.empty(), has_data = !options.data.empty();
  if (asks_for_difference(command.files,
                          {"logprobs", "--model DIR and --data FILE", has_model || has_data, has_model && has_data})) {
    return print_logprobs_difference(command.files);
  }
  use_threads(command.threads);
  if (!command.recipe.text.empty()) command.options.recipe = command.recipe.value;
  app::JsonLines lines = app::JsonLines::create(command.json);
  AuditFile audit(command.audit);
  double sum = 0;
  const std::vector<app::TokenLogprob> tokens = app::logprobs(options);
  for (const app::TokenLogprob& token : tokens) {
    lines.write({{"token", token.token}, {"id", token.id}, {"log_probability", token.log_probability}});
    sum += token.log_probability;
  }
  audit.write();
  write_line(fmt::format("{}, perplexity {:.6g}", counted(std::ssize(tokens), "token"),
                         std::exp(-sum / static_cast<double>(tokens.size()))));
  if (!std::isfinite(sum)) app::report_not_finite("logprobs: expected finite log probabilities, got Inf or NaN");
  return kExitOk;
}

}  // namespace

Command logprobs_command() {
  const auto command = std::make_shared<LogprobsCommand>();
  app::LogprobsOptions& options = command->options;
  options.model.warn = print_warning;
  return {
      .name = "logprobs",
      .summary =
          "The log probability of each token of a text, as training, a prompt, generation or a server computes it",
      .options =
          {{"model", "DIR", path(options.model.path, PathMust::kExist),
            "a Hugging Face directory, a run's directory, or one of its checkpoints"},
           {"data", "FILE", path(options.data, PathMust::kExist), "a text"},
           {"as", "HOW", choice(options.as, app::kLogprobsAs),
            "train: the forward pass of training; prefill: windows of the text at once into a cache; decode: token "
            "after token; serve: token after token of several windows together"},
           {"dtype", "NAME", choice(options.model.dtype, models::kWeightDtypes),
            "of a Hugging Face model's weights: stored, fp32, bf16, fp16, or codes: fp8, nvfp4 or mxfp4"},
           {"recipe", "NAME", recipe(command->recipe), "instead of the run's, or of the dtype of the weights"},
           {"adapter", "DIR", path(options.model.adapter, PathMust::kExist), "a LoRA adapter of the model"},
           {"context", "N", integer(options.context, {.from = 1, .to = 1 << 20}), "tokens of a window, instead of 512"},
           {"tokens", "N", integer(options.tokens, {.from = 2}), "of the text, at most"},
           {"batch", "N", integer(options.batch, {.from = 1, .to = models::kMostTextRows}),
            "--as serve: windows together"},
           threads_option(command->threads),
           report_option(command->json, "one JSON object a token"),
           audit_option(command->audit),
           difference_option(command->files,
                             "two files of --json: says how far they are apart, and exits 1 if they are")},
      .run = [command](const nlohmann::json&) { return run_logprobs(*command); }};
}

}  // namespace plimsoll::cli
