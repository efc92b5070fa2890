// The kernel that attends, for reports.
#pragma once

#include "plimsoll/format/format.h"
#include "plimsoll/runtime/cpu.h"

namespace plimsoll::kernels {

// The instructions of attention on queries of one format over keys and values of another, at the level in force on the
// calling thread.
runtime::Isa attention_isa(format::Format format, format::Format cache_format);

}  // namespace plimsoll::kernels
