// Memory that stays mapped between training steps.
#pragma once

namespace plimsoll::app {

// As installed, glibc maps each large tensor afresh and unmaps it after use, so every step pays page faults for all of
// its results (first touch runs at some 5 GB/s; a GPT step takes up to 1.7 times as long). This keeps freed memory in
// the process, on huge pages where the system has them. Call it first thing in main, before any thread starts and
// before torch allocates.
void keep_freed_memory();

}  // namespace plimsoll::app
