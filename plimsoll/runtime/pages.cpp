#include "plimsoll/runtime/pages.h"

#include <sys/mman.h>

#include <cstdint>

namespace plimsoll::runtime {

void* map_pages(size_t bytes) {
  // Mapped with room to align, then trimmed at both ends.
  const size_t room = bytes + kHugePage;
  void* const mapped = mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  char* const begin = static_cast<char*>(mapped);
  const size_t before = (kHugePage - reinterpret_cast<uintptr_t>(mapped) % kHugePage) % kHugePage;
  if (before > 0) munmap(begin, before);
  munmap(begin + before + bytes, kHugePage - before);
  madvise(begin + before, bytes, MADV_HUGEPAGE);
  return begin + before;
}

void unmap_pages(void* base, size_t bytes) { munmap(base, bytes); }

}  // namespace plimsoll::runtime
