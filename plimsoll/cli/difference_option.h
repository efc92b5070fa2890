// --diff FILE FILE, of the commands that make such files.
#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

#include "plimsoll/cli/command.h"

namespace plimsoll::cli {

Option difference_option(std::vector<std::filesystem::path>& files, std::string_view help);

// The options that a command makes a file of, and how many of them the user gave.
struct FileMaking {
  std::string_view command;  // its name
  std::string_view options;  // as the user types them
  bool has_one = false;
  bool has_all = false;
};

// Whether two files are to be compared, and none is to be made. Throws app::Error of a usage if both or neither is
// asked for, or if the files are not two.
bool asks_for_difference(const std::vector<std::filesystem::path>& files, const FileMaking& making);

}  // namespace plimsoll::cli
