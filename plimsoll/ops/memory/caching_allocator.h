// Keeps the memory of large CPU tensors in the process, on huge pages where the system has them.
#pragma once

#include <cstdint>

namespace plimsoll {

// From now on every CPU tensor of this process, PyTorch's own too, takes its memory from a pool: as installed, glibc
// maps each large result afresh and unmaps it after use, so that each step pays page faults for all of them (first
// touch runs at some 5 GB/s). Tensors below 256 KiB stay with PyTorch's allocator. What lies idle makes the
// whole larger than the most that was in use at a time by a sixteenth of it, or 64 MiB, at most. May be called at any time, more than once; thread-safe.
void use_caching_allocator();

struct CachingAllocatorStatistics {
  int64_t bytes_in_use = 0, bytes_idle = 0;
  int64_t peak_bytes_in_use = 0;
  int64_t blocks_mapped = 0;  // asked of the system since the start: constant once training runs steadily
};
CachingAllocatorStatistics caching_allocator_statistics();

// Gives what lies idle back to the system.
void release_cached_memory();

}  // namespace plimsoll
