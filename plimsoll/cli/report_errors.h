// Exceptions as a user sees them, one line on stderr and an exit code, and what is no error.
#pragma once

#include <functional>
#include <string>

namespace plimsoll::cli {

int report_errors(const std::function<int()>& body);

// One line on stderr: "plimsoll: warning: TEXT".
void print_warning(const std::string& text);

}  // namespace plimsoll::cli
