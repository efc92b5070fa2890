// One training run as a user sees it.
#pragma once

#include <functional>

#include "plimsoll/app/train/train.h"

namespace plimsoll::cli {

// Prints the configuration, on the rank that speaks. Throws UsageError first where options do not go together.
void print_configuration(const app::TrainOptions& options);

using Training = std::function<std::optional<app::TrainSummary>(const app::TrainObserver& observer)>;

// Prints the progress of `training`, a run with these options, and its outcome; returns the exit code. Errors are thrown,
// app::NotFinite among them where a loss at the end is Inf or NaN.
int print_training(const app::TrainOptions& options, const Training& training);
// The same of app::train.
int train_and_print(const app::TrainOptions& options);

}  // namespace plimsoll::cli
