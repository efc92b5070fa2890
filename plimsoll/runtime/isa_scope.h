// Instruction-set level that a thread hands on to others that work for it.
#pragma once

#include <optional>

#include "plimsoll/runtime/cpu.h"

namespace plimsoll::runtime {

// The level of the ScopedIsa in force on this thread.
std::optional<Isa> scoped_isa();

}  // namespace plimsoll::runtime
