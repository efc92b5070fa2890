// `plimsoll compare` as a function: one model, trained under several recipes.
#pragma once

#include <cstddef>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "plimsoll/app/train/train_options.h"

namespace plimsoll::app {

struct CompareOptions {
  std::vector<ChosenRecipe> recipes = {parse_recipe("fp32"), parse_recipe("bf16"), parse_recipe("fp8")};
  TrainOptions train;  // of each recipe, in a directory of its own below `out`
};

struct Comparison {
  int exit_code = 0;  // of the first recipe that did not end well
  // The summary of each run, with {"difference_percent"} of final_val_loss from the baseline's; null where one of the two
  // is not finite. Of several ranks the first has them.
  std::vector<nlohmann::json> results;
  size_t baseline = 0;  // among them: the first in fp32, or else the first
};

// Trains each recipe from the same weights and data, each in a process of its own, so that peak memory is that
// recipe's. `train_one` runs there and returns an exit code; it must leave the run's summary as last line of
// options.json. Ctrl-C ends the run at hand as it ends a single one. Call it before this process has started any
// thread. With train.resume each run goes on where it stopped, and a finished one is summed up again: the trainer refuses
// one of another recipe, text, model or seed. Writes OUT/compare.json, and the same to train.json if it is named. Throws
// io::Error where another process writes to OUT.
Comparison compare(const CompareOptions& options, const std::function<int(const TrainOptions&)>& train_one);

}  // namespace plimsoll::app
