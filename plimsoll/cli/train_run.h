// One training run as a user sees it.
#pragma once

#include "plimsoll/app/train_options.h"

namespace plimsoll::cli {

// Prints the configuration, on the rank that speaks. Throws UsageError first where options do not go together.
void print_configuration(const app::TrainOptions& options);

// Prints progress and the outcome; returns the exit code. Errors are thrown, app::NotFinite among them where a loss at
// the end is Inf or NaN.
int train_and_print(const app::TrainOptions& options);

}  // namespace plimsoll::cli
