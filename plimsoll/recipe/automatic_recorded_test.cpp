// The rule on what two runs measured: bench/auto_recording.py wrote automatic_recorded.json from their logs. Both train a
// Llama with outliers in some hidden channels that bench/auto_outliers.py made.
#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "plimsoll/recipe/automatic_rule.h"

namespace plimsoll::recipe::automatic_recorded_test {
namespace {

using nlohmann::json;

json recorded_runs() {
  std::ifstream file(PLIMSOLL_RECORDED_RUNS);
  return json::parse(file);
}

// The log names the operand of a promotion alone. The rule treats a load alike whichever operand it is of.
Role role_of(const json& row) {
  const std::string operand = row.value("operand", "input");
  return operand == "grad_output" ? Role::kGradOutput : operand == "weight" ? Role::kWeight : Role::kInput;
}

// A ladder of two rungs measures the codes of the narrower one on both.
StepMeasurement measurement(const Automatic& recipe, int64_t rung, const json& row) {
  const double load = row.at("load");
  const std::string reason = row.value("reason", "error");
  ProductMeasurement measured{.a = {.role = role_of(row)}, .b = {.role = Role::kWeight}};
  if (reason == "not finite") {
    measured.a.finite = false;
  } else if (reason == "flushed") {
    measured.a.flushed = row.at("error");
  } else if (reason == "gradient") {
    measured.a.norm_error = row.at("error");
  } else {
    measured.a.error = row.value("error", load * recipe.bound(0, measured.a.role));
  }
  return rung == 0 ? StepMeasurement{.own = measured} : StepMeasurement{.below = measured};
}

// Changes as "step: to reason".
std::string described(const json& row) {
  return std::to_string(row.at("step").get<int64_t>()) + ": " + row.at("to").get<std::string>() + " " +
         row.at("reason").get<std::string>();
}

struct Changes {
  std::vector<std::string> expected, found;
};

// Changes that the rule makes of a product's rows, and those of the run.
Changes replayed(const Automatic& recipe, int64_t steps, const json& rows) {
  Changes changes;
  ProductState state;
  for (const json& row : rows) {
    if (row.contains("to")) changes.expected.push_back(described(row));
    const int64_t step = row.at("step");
    const auto decision = decide(recipe, {.step = step, .steps = steps}, measurement(recipe, state.rung, row), state);
    if (!decision) continue;
    const std::string& to = recipe.ladder.at(static_cast<size_t>(decision->to)).name;
    changes.found.push_back(std::to_string(step) + ": " + to + " " + std::string(name(decision->reason)));
    if (!row.contains("operand")) continue;
    EXPECT_EQ(decision->role, role_of(row)) << changes.found.back();
    EXPECT_DOUBLE_EQ(decision->bound, row.at("bound").get<double>()) << changes.found.back();
    EXPECT_DOUBLE_EQ(decision->error, row.at("error").get<double>()) << changes.found.back();
  }
  return changes;
}

TEST(AutomaticRule, DecidesOnRecordedRunsWhatThoseRunsDid) {
  std::set<std::string> targets;
  size_t products_without_changes = 0;
  for (const json& run : recorded_runs()) {
    const Automatic recipe = automatic_from_text(run.at("recipe").dump());
    for (const auto& [product, rows] : run.at("products").items()) {
      const Changes changes = replayed(recipe, run.at("steps"), rows);
      EXPECT_EQ(changes.found, changes.expected) << product;
      for (const json& row : rows) {
        if (row.contains("to")) targets.insert(row.at("to").get<std::string>());
      }
      if (changes.expected.empty()) ++products_without_changes;
    }
  }
  EXPECT_EQ(targets, std::set<std::string>({"bf16", "e4m3"}));
  EXPECT_GT(products_without_changes, 0u);
}

}  // namespace
}  // namespace plimsoll::recipe::automatic_recorded_test
