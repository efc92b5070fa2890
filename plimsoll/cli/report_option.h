// --json FILE, --audit FILE and --profile FILE: a file that a command writes a report to.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "plimsoll/cli/command.h"

namespace plimsoll::cli {

// A path of no file but an earlier report: app::is_free_for_report.
Field report_path(std::filesystem::path& target);

// The same of an option whose value may be left out. A file that could not be written at the end is refused, too.
Field optional_report_path(std::optional<std::filesystem::path>& target);

// --json FILE, which gets `what`.
Option report_option(std::filesystem::path& target, const std::string& what);

}  // namespace plimsoll::cli
