// From argv to a command's variables.
#pragma once

#include <string>
#include <vector>

#include "plimsoll/cli/command.h"

namespace plimsoll::cli {

// Parses argv, fills the options of the chosen command (those given on the command line win over those in its --config
// FILE, a JSON object {option: value}), and runs it. Returns the exit code. Prints help and errors; an error is one
// line on stderr.
int run_command_line(int argc, const char* const* argv, const std::vector<Command>& commands);

// "--config": stands in a table like any other option, and is read before the rest.
inline constexpr const char* kConfigOption = "config";

}  // namespace plimsoll::cli
