// plimsoll finetune --show-data: examples as the model learns them.
#pragma once

#include "plimsoll/app/finetune/finetune_options.h"

namespace plimsoll::cli {

// Prints the first examples of the run, in its order. What counts is green; where there is no terminal, or NO_COLOR is
// set, it stands between [[ and ]]. With run.json it goes there, too: a line {"place", "tokens", "counts"} an example.
void show_data(const app::FinetuneOptions& options);

}  // namespace plimsoll::cli
