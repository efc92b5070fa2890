// The options that `train` and `compare` share.
#pragma once

#include <filesystem>
#include <vector>

#include "plimsoll/app/train/train_options.h"
#include "plimsoll/cli/command.h"

namespace plimsoll::cli {

// Sizes of a model and of what it reads at once. Products of three of them fit into 64 bits.
inline constexpr Range<int64_t> kSizes{.from = 1, .to = 1 << 20};
// Numbers of blocks of a model.
inline constexpr Range<int64_t> kLayers{.from = 1, .to = 1 << 16};

// Rows bound to `options`; `config` holds the name of the configuration file.
std::vector<Option> train_table(app::TrainOptions& options, std::filesystem::path& config);

}  // namespace plimsoll::cli
