#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "plimsoll/app/audit.h"
#include "plimsoll/cli/audit_option.h"
#include "plimsoll/cli/commands.h"
#include "plimsoll/cli/difference_option.h"
#include "plimsoll/cli/output.h"
#include "plimsoll/cli/report_errors.h"
#include "plimsoll/cli/report_option.h"
#include "plimsoll/cli/table.h"
#include "plimsoll/cli/threads_option.h"

namespace plimsoll::cli {
namespace {

struct AuditCommand {
  app::AuditOptions options;
  app::ChosenRecipe recipe;  // empty text: none
  std::vector<std::filesystem::path> files;
  bool forward_products = false;
  int64_t threads = 0;
  std::filesystem::path json;
};

// "weight e4m3 row held fp32".
std::string operand_cell(const watch::AuditOperand& operand) {
  std::vector<std::string> words = {operand.name, operand.format};
  if (!operand.values_of.empty()) words.push_back("of " + operand.values_of);
  for (const std::string* word : {&operand.granularity, &operand.source, &operand.scale}) {
    if (!word->empty()) words.push_back(*word);
  }
  return fmt::format("{}", fmt::join(words, " "));
}

void print_audit(const watch::Audit& audit) {
  const double all = audit.operations();
  Table table({"layer", "op", "operands", "output", "kernel", "decided by", "share"});
  std::map<std::string, int64_t> reasons;  // rows
  for (const watch::AuditRow& row : audit.rows()) {
    std::vector<std::string> operands;
    for (const watch::AuditOperand& operand : row.operands) operands.push_back(operand_cell(operand));
    table.add({row.layer.empty() ? "-" : row.layer, row.op, fmt::format("{}", fmt::join(operands, ", ")), row.output,
               row.kernel, row.decided, fmt::format("{:.2f}%", all > 0 ? 100 * row.operations / all : 0)});
    if (!row.reason.empty()) ++reasons[row.reason];
  }
  write_text(table.text());
  write_line(fmt::format("{}, {:.4g} multiply-adds", counted(std::ssize(audit.rows()), "row"), all / 2));
  for (const auto& [reason, rows] : reasons) write_line(fmt::format("{}: {}", counted(rows, "row"), reason));
}

int print_differences(const AuditCommand& command) {
  const auto which = command.forward_products ? app::AuditedRows::kForwardProducts : app::AuditedRows::kAll;
  const std::vector<std::string> lines = app::audit_differences(command.files[0], command.files[1], which);
  for (const std::string& line : lines) write_line(line);
  return lines.empty() ? kExitOk : kExitFailed;
}

int run_audit(AuditCommand& command) {
  const bool has_model = !command.options.model.path.empty();
  if (asks_for_difference(command.files, {"audit", "--model DIR", has_model, has_model})) {
    return print_differences(command);
  }
  if (command.forward_products) app::refuse("--forward-products: expected --diff FILE FILE with it, got none");
  use_threads(command.threads);
  if (!command.recipe.text.empty()) command.options.recipe = command.recipe;
  app::JsonLines lines = app::JsonLines::create(command.json);
  watch::Audit audit;
  app::audit_model(command.options, audit);
  write_audit(audit, lines);
  print_audit(audit);
  return kExitOk;
}

}  // namespace

Command audit_command() {
  const auto command = std::make_shared<AuditCommand>();
  app::AuditOptions& options = command->options;
  options.model.warn = print_warning;
  return {
      .name = "audit",
      .summary = "Which format, scale and kernel every product and operator of a model has; or where two audits differ",
      .options =
          {{"model", "DIR", path(options.model.path, PathMust::kExist),
            "a Hugging Face directory, a run's directory, or one of its checkpoints"},
           {"recipe", "NAME", training_recipe(command->recipe),
            "instead of the run's; of a directory fp32, or to generate the dtype of its weights"},
           {"as", "HOW", choice(options.as, app::kAuditedAs),
            "train: the passes of a training step; generate: a prompt and a token after it"},
           {"dtype", "NAME", choice(options.model.dtype, models::kWeightDtypes),
            "--as generate: of a Hugging Face model's weights: stored, fp32, bf16, fp16, fp8, nvfp4, mxfp4"},
           {"adapter", "DIR", path(options.model.adapter, PathMust::kExist), "--as generate: a LoRA adapter"},
           {"tokens", "N", integer(options.tokens, {.from = 1, .to = 1 << 20}), "of the step, or of the prompt"},
           threads_option(command->threads),
           report_option(command->json, "one JSON object a row"),
           difference_option(command->files,
                             "two files of --json or of another command's --audit: prints a line for each difference, "
                             "and exits 1 if there is one; calls, operations and shares are not compared"),
           {"forward-products", "", toggle(command->forward_products),
            "with --diff: compare only what the products of the forward pass read, as of a trainer and a server"}},
      .run = [command](const nlohmann::json&) { return run_audit(*command); }};
}

}  // namespace plimsoll::cli
