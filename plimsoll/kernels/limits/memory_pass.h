// Passes over memory with nothing in between, on the widest registers at or below runtime::isa(): the most that a
// kernel which moves the same bytes can reach. Each runs on the calling thread, over whole words of 64 bytes.
#pragma once

#include <cstdint>

namespace plimsoll::kernels {

void read_memory(const void* from, int64_t bytes);
void write_memory(void* to, int64_t bytes);
void copy_memory(void* to, const void* from, int64_t bytes);
// Reads and stores each word where it stands; the contents stay.
void rewrite_memory(void* at, int64_t bytes);

}  // namespace plimsoll::kernels
