#include "plimsoll/app/compare.h"

#include <algorithm>
#include <optional>
#include <set>

#include "plimsoll/app/child_process.h"
#include "plimsoll/app/error.h"
#include "plimsoll/app/json_lines.h"
#include "plimsoll/app/parse_recipe.h"
#include "plimsoll/app/ranks.h"
#include "plimsoll/app/run_directory.h"
#include "plimsoll/io/atomic_file.h"
#include "plimsoll/io/error.h"

namespace plimsoll::app {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// The recipe's name; a second variant of it gets a number.
std::string directory_name(const std::string& recipe, std::set<std::string>& taken) {
  const std::string name(parse_recipe(recipe).name());
  std::string candidate = name;
  for (int number = 2; !taken.insert(candidate).second; ++number) candidate = io::compose("{}-{}", name, number);
  return candidate;
}

bool is_finished(const TrainOptions& run) {
  if (!run.resume) return false;
  const auto last = last_json_line(run.json);
  return last && last->contains("final_val_loss") && last->value("steps", int64_t{0}) == run.steps;
}

void add_differences(std::vector<json>& results) {
  const auto baseline =
      std::find_if(results.begin(), results.end(), [](const json& run) { return run["recipe"] == "fp32"; });
  for (json& run : results) {
    run["difference_percent"] = nullptr;
    if (baseline == results.end() || !run["final_val_loss"].is_number() || !(*baseline)["final_val_loss"].is_number())
      continue;
    const double loss = run["final_val_loss"], reference = (*baseline)["final_val_loss"];
    run["difference_percent"] = 100 * (loss - reference) / reference;
  }
}

}  // namespace

Comparison compare(const CompareOptions& options, const std::function<int(const TrainOptions&)>& train_one) {
  Comparison comparison;
  const bool is_first = speaks(options.train);
  std::optional<RunDirectory> directory;
  if (is_first) directory.emplace(options.train.out);
  std::set<std::string> taken;
  for (const std::string& recipe : options.recipes) {
    TrainOptions run = options.train;
    run.recipe = recipe;
    run.out = options.train.out / directory_name(recipe, taken);
    run.json = run.out / "train.jsonl";
    if (!is_finished(run)) comparison.exit_code = run_in_child([&] { return train_one(run); });
    if (comparison.exit_code != 0) return comparison;
    if (!is_first) continue;
    auto summary = last_json_line(run.json);
    if (!summary) fail("{}: expected the run's summary in the last line, got none", run.json.native());
    comparison.results.push_back(std::move(*summary));
  }
  if (!is_first) return comparison;
  add_differences(comparison.results);
  const json document = {{"configuration", options.train.configuration}, {"results", comparison.results}};
  io::write_file(options.train.out / "compare.json", document.dump(2) + "\n");
  directory->keep();
  return comparison;
}

}  // namespace plimsoll::app
