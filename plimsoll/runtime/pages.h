// Memory straight from the system, on huge pages where it has them.
#pragma once

#include <cstddef>

namespace plimsoll::runtime {

inline constexpr size_t kHugePage = size_t{2} << 20;  // bytes, x86-64

// Zeroed memory at an address that is a multiple of a huge page; nullptr when the system has none. `bytes` is a
// multiple of 4 KiB; what is left over from whole huge pages lies on small ones.
void* map_pages(size_t bytes);
void unmap_pages(void* base, size_t bytes);

// For memory of map_pages() that is written once, and soon: on small pages first, as the first touch of a huge page
// takes milliseconds where a virtual machine's host has taken free memory back. When it is written, join_pages() lets
// the system put it on huge ones by and by.
void take_small_pages(void* base, size_t bytes);
void join_pages(void* base, size_t bytes);

}  // namespace plimsoll::runtime
