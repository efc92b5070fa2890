// The memory of this process, and what the system has for it.
#pragma once

#include <cstdint>
#include <optional>

namespace plimsoll::app {

// The most physical memory held so far, in bytes.
int64_t peak_rss_bytes();

// Physical memory held now, in bytes.
int64_t rss_bytes();

// Physical memory that the system could give this process beside what it holds now, in bytes, and that the control groups
// it is in leave; nullopt where the system does not say.
std::optional<int64_t> available_memory_bytes();

}  // namespace plimsoll::app
