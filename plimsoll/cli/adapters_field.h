// --adapter of a command that serves several: each is DIR, whose last part is its name, or NAME=DIR.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "plimsoll/cli/field.h"

namespace plimsoll::cli {

struct NamedAdapter {
  std::string name;
  std::filesystem::path directory;
};

// No two have the same name.
Field adapters(std::vector<NamedAdapter>& target);

}  // namespace plimsoll::cli
