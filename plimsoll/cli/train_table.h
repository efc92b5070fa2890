// The options that `train` and `compare` share.
#pragma once

#include <filesystem>
#include <vector>

#include "plimsoll/app/train_options.h"
#include "plimsoll/cli/command.h"

namespace plimsoll::cli {

// Rows bound to `options`; `config` holds the name of the configuration file.
std::vector<Option> train_table(app::TrainOptions& options, std::filesystem::path& config);

}  // namespace plimsoll::cli
