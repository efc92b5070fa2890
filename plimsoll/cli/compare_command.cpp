#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <optional>

#include "plimsoll/app/compare.h"
#include "plimsoll/app/compare_models.h"
#include "plimsoll/app/error.h"
#include "plimsoll/app/json_lines.h"
#include "plimsoll/app/process/ranks.h"
#include "plimsoll/cli/audit_option.h"
#include "plimsoll/cli/commands.h"
#include "plimsoll/cli/output.h"
#include "plimsoll/cli/report_errors.h"
#include "plimsoll/cli/table.h"
#include "plimsoll/cli/train_run.h"
#include "plimsoll/cli/train_table.h"
#include "plimsoll/watch/audit.h"

namespace plimsoll::cli {
namespace {

using nlohmann::json;

std::string number_text(const json& run, const char* name, const char* form, double unit = 1) {
  const json& value = run.at(name);
  return value.is_number() ? fmt::format(fmt::runtime(form), value.get<double>() / unit) : "-";
}

// JSON has no NaN: the validation loss of a run that diverged is null.
std::string validation_loss_text(const json& run) {
  const json& loss = run.at("final_val_loss");
  if (loss.is_null()) return run.value("diverged", false) ? "nan" : "-";
  return loss_text(loss.get<double>());
}

std::string table_of(const app::Comparison& comparison) {
  const auto baseline = comparison.results[comparison.baseline].at("recipe").get<std::string>();
  Table table({"recipe", "val loss", "vs " + baseline, "tokens/s", "saved MB", "peak MB"});
  for (const json& run : comparison.results) {
    table.add({run.at("recipe").get<std::string>(), validation_loss_text(run),
               number_text(run, "difference_percent", "{:+.2f}%"), number_text(run, "tokens_per_s", "{:.0f}"),
               number_text(run, "saved_activation_bytes", "{:.1f}", 1e6),
               number_text(run, "peak_rss_bytes", "{:.0f}", 1e6)});
  }
  return table.text();
}

// A recipe that diverges is a row of the table, and the others follow.
int train_even_if_it_diverges(const app::TrainOptions& options) {
  try {
    const int code = train_and_print(options);
    return code == kExitNotFinite ? kExitOk : code;
  } catch (const app::NotFinite&) {
    return kExitOk;
  }
}

std::string diverged_recipes(const std::vector<json>& results) {
  std::string names;
  for (const json& run : results) {
    const bool is_finite = run.at("final_val_loss").is_number() && !run.value("diverged", false);
    if (!is_finite) names += (names.empty() ? "" : ", ") + run.at("recipe").get<std::string>();
  }
  return names;
}

std::string figure(const std::optional<double>& value) { return value ? fmt::format("{:.3g}", *value) : "-"; }

// The tensors that differ, and how many do not.
int run_models(const std::vector<std::filesystem::path>& models, const std::filesystem::path& log) {
  if (models.size() != 2) app::refuse("compare: expected two directories of models, got {}", models.size());
  const app::ModelDifference difference = app::compare_models(models[0], models[1]);
  app::JsonLines lines = app::JsonLines::create(log);
  Table table({"tensor", "first", "second", "relative L2", "largest"});
  size_t equal = 0;
  for (const app::TensorDifference& tensor : difference.tensors) {
    lines.write(app::to_json(tensor));
    equal += tensor.is_zero() ? 1 : 0;
    if (tensor.is_zero() && tensor.first == tensor.second) continue;
    const auto or_none = [](const std::string& kind) { return kind.empty() ? "-" : kind; };
    table.add({tensor.name, or_none(tensor.first), or_none(tensor.second), figure(tensor.relative_l2),
               tensor.relative_l2 ? figure(tensor.largest) : "-"});
  }
  fmt::print("{}{}, {} of equal values; config.json: {}\n", table.text(),
             counted(std::ssize(difference.tensors), "tensor"), equal,
             difference.config.empty() ? "equal" : fmt::format("differs in {}", fmt::join(difference.config, ", ")));
  return kExitOk;
}

int run(const app::CompareOptions& options, const std::filesystem::path& audit_path) {
  print_configuration(options.train);
  AuditFile audit(app::speaks(options.train) ? audit_path : "");
  audit.begin();
  const app::Comparison comparison = app::compare(options, [&](const app::TrainOptions& one) {
    return report_errors([&] {
      const watch::AuditedRun audited(one.out.filename().native());
      const int code = train_even_if_it_diverges(one);
      audit.write();  // this process is the recipe's own, which has no other rows
      return code;
    });
  });
  if (comparison.exit_code != kExitOk || !app::speaks(options.train)) return comparison.exit_code;
  fmt::print("\n{}", table_of(comparison));
  const std::string diverged = diverged_recipes(comparison.results);
  if (!diverged.empty())
    app::report_not_finite("compare: expected finite losses at the end, got Inf or NaN of {}", diverged);
  return kExitOk;
}

}  // namespace

Command compare_command() {
  struct Bound {
    app::CompareOptions options;
    std::filesystem::path config, audit;
    std::vector<std::filesystem::path> models;
  };
  const auto bound = std::make_shared<Bound>();
  std::vector<Option> table = train_table(bound->options.train, bound->config);
  table.push_back({"models", "DIR DIR", existing_paths(bound->models),
                   "two Hugging Face directories, whose weights and configs are compared: nothing is trained",
                   Need::kAlone, AcrossRanks::kOwn});
  table.push_back({"recipes", "NAME,...", recipes(bound->options.recipes),
                   "in this order; differences are from fp32, or without it from the first"});
  table.push_back(audit_option(bound->audit));
  return {.name = "compare",
          .summary =
              "Train the same model on the same data under several recipes, and compare; or the weights of two models",
          .options = table,
          .run = [bound, table](const json& configuration) {
            if (!bound->models.empty()) return run_models(bound->models, bound->options.train.json);
            bound->options.train.configuration = configuration;
            bound->options.train.common_to_ranks = common_values(table);
            return run(bound->options, bound->audit);
          }};
}

}  // namespace plimsoll::cli
