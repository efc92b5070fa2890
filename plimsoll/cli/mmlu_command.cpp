#include <fmt/format.h>

#include <memory>
#include <span>

#include "plimsoll/app/error.h"
#include "plimsoll/app/t5/mmlu.h"
#include "plimsoll/cli/audit_option.h"
#include "plimsoll/cli/commands.h"
#include "plimsoll/cli/output.h"
#include "plimsoll/cli/report_errors.h"
#include "plimsoll/cli/report_option.h"
#include "plimsoll/cli/table.h"
#include "plimsoll/cli/threads_option.h"
#include "plimsoll/io/atomic_file.h"

namespace plimsoll::cli {
namespace {

using nlohmann::json;

const auto kMmluDtypes = std::span(models::kT5Dtypes).subspan(1);  // without "stored"

struct MmluCommand {
  app::MmluOptions options;
  std::filesystem::path json_file, audit;
  int64_t threads = 0;
};

std::string percent(double share) { return fmt::format("{:.1f} %", 100 * share); }

std::string interval_text(const json& binomial) {
  const json& ends = binomial.at("interval");
  return fmt::format("{} to {}", percent(ends.at(0).get<double>()), percent(ends.at(1).get<double>()));
}

void print_mmlu(const json& result, const std::vector<models::T5Dtype>& dtypes) {
  Table table({"dtype", "right", "accuracy", "95 % interval",
               "answers as " + std::string(recipe::name_of(kMmluDtypes, dtypes.front()))});
  for (const models::T5Dtype value : dtypes) {
    const std::string dtype(recipe::name_of(kMmluDtypes, value));
    const json& accuracy = result.at("dtypes").at(dtype).at("accuracy");
    table.add({dtype, accuracy.at("correct").dump(), percent(accuracy.at("share").get<double>()),
               interval_text(accuracy),
               percent(result.at("dtypes").at(dtype).at("agreement").at("share").get<double>())});
  }
  fmt::print("{}{}, {} before each, fewer before {}\n", table.text(),
             counted(result.at("questions").get<int64_t>(), "question"),
             counted(result.at("shots").get<int64_t>(), "example"), result.at("shortened").get<int64_t>());
}

int run_mmlu(const MmluCommand& command) {
  use_threads(command.threads);
  AuditFile audit(command.audit);
  const json result = app::mmlu(command.options);
  audit.write();
  if (!command.json_file.empty()) io::write_file(command.json_file, result.dump(2) + "\n");
  print_mmlu(result, command.options.dtypes);
  for (const models::T5Dtype value : command.options.dtypes) {
    const std::string dtype(recipe::name_of(kMmluDtypes, value));
    const auto unanswered = result.at("dtypes").at(dtype).at("no_answer").get<int64_t>();
    if (unanswered > 0) {
      app::report_not_finite("mmlu: expected finite logits in {}, got Inf or NaN for {} of {}", dtype, unanswered,
                             counted(result.at("questions").get<int64_t>(), "question"));
    }
  }
  return kExitOk;
}

}  // namespace

Command mmlu_command() {
  const auto command = std::make_shared<MmluCommand>();
  app::MmluOptions& options = command->options;
  options.warn = print_warning;
  return {
      .name = "mmlu",
      .summary = "Let a T5 in several dtypes answer your multiple-choice questions, in MMLU's files",
      .options = {{"model", "DIR", path(options.model, PathMust::kExist), "a Hugging Face directory", Need::kRequired},
                  {"data", "DIR", path(options.data, PathMust::kExist),
                   "with test/SUBJECT_test.csv and dev/SUBJECT_dev.csv: rows of question,A,B,C,D,answer",
                   Need::kRequired},
                  {"dtypes", "A,B", choices(options.dtypes, kMmluDtypes), "of fp32, bf16, fp16, fp8, nvfp4, mxfp4"},
                  {"fixes", "NAME", choice(options.numerics, models::kT5Fixes), "of fp16, as plimsoll t5"},
                  {"shots", "N", integer(options.shots, {.from = 0, .to = 1000}),
                   "examples from dev before each question"},
                  {"max-tokens", "N", integer(options.max_tokens, {.from = 1, .to = 1 << 20}),
                   "of a prompt; fewer examples where it would have more"},
                  {"batch", "N", integer(options.batch, {.from = 1, .to = 1 << 20}), "questions at a time"},
                  threads_option(command->threads),
                  audit_option(command->audit),
                  report_option(command->json_file, "all figures, by subject,")},
      .run = [command](const json&) { return run_mmlu(*command); }};
}

}  // namespace plimsoll::cli
