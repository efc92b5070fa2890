// One training run as a user sees it.
#pragma once

#include "plimsoll/app/train_options.h"

namespace plimsoll::cli {

// Prints progress and the outcome; returns the exit code. Errors are thrown, app::NotFinite among them where a loss at
// the end is Inf or NaN.
int train_and_print(const app::TrainOptions& options);

}  // namespace plimsoll::cli
