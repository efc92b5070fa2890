// --threads, of the commands that compute without training.
#pragma once

#include <cstdint>

#include "plimsoll/cli/command.h"

namespace plimsoll::cli {

Option threads_option(int64_t& threads);

// As the option says; 0 leaves what the process has. Starts them. Throws std::runtime_error where the system refuses.
void use_threads(int64_t threads);

}  // namespace plimsoll::cli
