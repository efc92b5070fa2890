// The memory of this process.
#pragma once

#include <cstdint>

namespace plimsoll::app {

// The most physical memory held so far, in bytes.
int64_t peak_rss_bytes();

}  // namespace plimsoll::app
