#include <memory>

#include "plimsoll/app/process/ranks.h"
#include "plimsoll/cli/audit_option.h"
#include "plimsoll/cli/commands.h"
#include "plimsoll/cli/report_option.h"
#include "plimsoll/cli/train_run.h"
#include "plimsoll/cli/train_table.h"
#include "plimsoll/cli/watch_option.h"

namespace plimsoll::cli {

Command train_command() {
  struct Bound {
    app::TrainOptions options;
    std::filesystem::path config, audit;
  };
  const auto bound = std::make_shared<Bound>();
  std::vector<Option> table = train_table(bound->options, bound->config);
  table.push_back({"recipe", "NAME", training_recipe(bound->options.recipe), training_recipe_help()});
  table.push_back(
      {"profile", "[FILE]", optional_report_path(bound->options.profile),
       "print the time of every op over up to 20 steps; FILE, a new one or an earlier trace, gets them for Chrome",
       Need::kOptional, AcrossRanks::kOwn});
  table.push_back(watch_option(bound->options.watch));
  table.push_back(audit_option(bound->audit));
  return {.name = "train",
          .summary = "Train a model on text under one recipe",
          .options = table,
          .run = [bound, table](const nlohmann::json& configuration) {
            app::TrainOptions& options = bound->options;
            options.configuration = configuration;
            options.common_to_ranks = common_values(table);
            if (options.json.empty()) options.json = options.out / "train.jsonl";
            print_configuration(options);
            AuditFile audit(app::speaks(options) ? bound->audit : "");
            const int exit_code = train_and_print(options);
            audit.write();
            return exit_code;
          }};
}

}  // namespace plimsoll::cli
