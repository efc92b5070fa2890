#include <fmt/format.h>

#include <memory>

#include "plimsoll/app/compare.h"
#include "plimsoll/cli/commands.h"
#include "plimsoll/cli/report_errors.h"
#include "plimsoll/cli/table.h"
#include "plimsoll/cli/train_run.h"
#include "plimsoll/cli/train_table.h"

namespace plimsoll::cli {
namespace {

using nlohmann::json;

std::string number_text(const json& run, const char* name, const char* form, double unit = 1) {
  const json& value = run.at(name);
  return value.is_number() ? fmt::format(fmt::runtime(form), value.get<double>() / unit) : "-";
}

std::string table_of(const std::vector<json>& results) {
  Table table({"recipe", "val loss", "vs fp32", "tokens/s", "saved MB", "peak MB"});
  for (const json& run : results) {
    table.add({run.at("recipe").get<std::string>(), number_text(run, "final_val_loss", "{:.4f}"),
               number_text(run, "difference_percent", "{:+.2f}%"), number_text(run, "tokens_per_s", "{:.0f}"),
               number_text(run, "saved_activation_bytes", "{:.1f}", 1e6),
               number_text(run, "peak_rss_bytes", "{:.0f}", 1e6)});
  }
  return table.text();
}

int run(const app::CompareOptions& options) {
  fmt::print("configuration {}\n", options.train.configuration.dump());
  const app::Comparison comparison = app::compare(
      options, [](const app::TrainOptions& one) { return report_errors([&] { return train_and_print(one); }); });
  if (comparison.exit_code != kExitOk) return comparison.exit_code;
  fmt::print("\n{}", table_of(comparison.results));
  return kExitOk;
}

}  // namespace

Command compare_command() {
  struct Bound {
    app::CompareOptions options;
    std::filesystem::path config;
  };
  const auto bound = std::make_shared<Bound>();
  std::vector<Option> table = train_table(bound->options.train, bound->config);
  table.push_back({"recipes", "NAME,...", recipes(bound->options.recipes), "in this order; differences are from fp32"});
  return {.name = "compare",
          .summary = "Train the same model on the same data under several recipes, and compare",
          .options = std::move(table),
          .run = [bound](const json& configuration) {
            bound->options.train.configuration = configuration;
            return run(bound->options);
          }};
}

}  // namespace plimsoll::cli
