// Files that a command's --json and --audit write.
#pragma once

#include <filesystem>

namespace plimsoll::app {

// Whether nothing is lost where a report takes the place of what has this name: nothing, something that is no regular file (a
// pipe, a terminal), an empty file, or a report, which is known by the fields of its first JSON object.
bool is_free_for_report(const std::filesystem::path& path);

}  // namespace plimsoll::app
