#include "plimsoll/app/compare.h"

#include <algorithm>
#include <optional>
#include <set>

#include "plimsoll/app/error.h"
#include "plimsoll/app/json_lines.h"
#include "plimsoll/app/parse_recipe.h"
#include "plimsoll/app/process/child_process.h"
#include "plimsoll/app/process/ranks.h"
#include "plimsoll/app/run_directory.h"
#include "plimsoll/io/atomic_file.h"
#include "plimsoll/io/error.h"

namespace plimsoll::app {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// The recipe's name; a second variant of it gets a number.
std::string directory_name(const ChosenRecipe& recipe, std::set<std::string>& taken) {
  const std::string name(recipe.automatic ? "auto" : recipe.value.name());
  std::string candidate = name;
  for (int number = 2; !taken.insert(candidate).second; ++number) candidate = io::compose("{}-{}", name, number);
  return candidate;
}

bool is_fp32(const ChosenRecipe& recipe) {
  return recipe.value.high_precision() && recipe.value.high_precision_format() == format::Format::kFp32;
}

size_t baseline_of(const std::vector<ChosenRecipe>& recipes) {
  const auto found = std::ranges::find_if(recipes, is_fp32);
  return found == recipes.end() ? 0 : static_cast<size_t>(found - recipes.begin());
}

void add_differences(Comparison& comparison) {
  const json reference = comparison.results[comparison.baseline]["final_val_loss"];
  for (json& run : comparison.results) {
    run["difference_percent"] = nullptr;
    if (!run["final_val_loss"].is_number() || !reference.is_number()) continue;
    const double loss = run["final_val_loss"], expected = reference;
    run["difference_percent"] = 100 * (loss - expected) / expected;
  }
}

}  // namespace

Comparison compare(const CompareOptions& options, const std::function<int(const TrainOptions&)>& train_one) {
  Comparison comparison;
  const bool is_first = speaks(options.train);
  std::optional<RunDirectory> directory;
  if (is_first) directory.emplace(options.train.out);
  JsonLines report = JsonLines::create(is_first ? options.train.json : "");
  std::set<std::string> taken;
  for (const ChosenRecipe& recipe : options.recipes) {
    TrainOptions run = options.train;
    run.recipe = recipe;
    run.out = options.train.out / directory_name(recipe, taken);
    run.json = run.out / "train.jsonl";
    comparison.exit_code = run_in_child([&] { return train_one(run); });
    if (comparison.exit_code != 0) return comparison;
    if (!is_first) continue;
    auto summary = last_json_line(run.json);
    if (!summary) fail("{}: expected the run's summary in the last line, got none", run.json.native());
    comparison.results.push_back(std::move(*summary));
  }
  if (!is_first) return comparison;
  comparison.baseline = baseline_of(options.recipes);
  add_differences(comparison);
  const json document = {{"configuration", options.train.configuration},
                         {"baseline", comparison.results[comparison.baseline].at("recipe")},
                         {"results", comparison.results}};
  io::write_file(options.train.out / "compare.json", document.dump(2) + "\n");
  report.write(document);
  directory->keep();
  return comparison;
}

}  // namespace plimsoll::app
