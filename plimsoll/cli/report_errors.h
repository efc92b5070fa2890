// Exceptions as a user sees them: one line on stderr and an exit code.
#pragma once

#include <functional>

namespace plimsoll::cli {

int report_errors(const std::function<int()>& body);

}  // namespace plimsoll::cli
