#include "plimsoll/cli/difference_option.h"

#include <string>

#include "plimsoll/app/error.h"
#include "plimsoll/cli/field.h"

namespace plimsoll::cli {

Option difference_option(std::vector<std::filesystem::path>& files, std::string_view help) {
  return {"diff", "FILE FILE", existing_paths(files), std::string(help)};
}

bool asks_for_difference(const std::vector<std::filesystem::path>& files, const FileMaking& making) {
  if (files.empty() ? !making.has_all : making.has_one) {
    app::refuse("{}: expected either {}, or --diff FILE FILE, got {}", making.command, making.options,
                !files.empty()   ? "both"
                : making.has_one ? "a part of the former"
                                 : "neither");
  }
  if (!files.empty() && files.size() != 2) app::refuse("--diff: expected two files, got {}", files.size());
  return !files.empty();
}

}  // namespace plimsoll::cli
