// Working memory of kernels, kept between calls: mapped once per thread and slot, grown when needed, on huge pages
// where the system has them.
#pragma once

#include <cstddef>

namespace plimsoll::runtime {

// Owner of the block. Two kernels that can be active on one thread at a time use different slots.
enum class ScratchSlot : int { kGemmA, kGemmB, kGemmTile, kRows, kReduce, kAttention, kCount };

// At least `bytes` bytes, 64-byte aligned, private to the calling thread. Contents are those of the last use, or zero.
// Valid until the next call with the same slot on the same thread. Ends the process with one line when the system has
// no memory.
void* scratch(ScratchSlot slot, size_t bytes);

// Bytes held by the calling thread, all slots together.
size_t scratch_bytes();

// Returns the calling thread's blocks to the system.
void release_scratch();

}  // namespace plimsoll::runtime
