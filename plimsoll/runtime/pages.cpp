#include "plimsoll/runtime/pages.h"

#include <sys/mman.h>

#include <cstdint>

namespace plimsoll::runtime {

void* map_pages(size_t bytes) {
  // Mapped with room to align, then trimmed at both ends. The system places a mapping below the one before it, so what
  // is aligned at the upper end joins that one.
  const size_t room = bytes + kHugePage;
  void* const mapped = mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  char* const low = static_cast<char*>(mapped);
  char* const base = low + (kHugePage - reinterpret_cast<uintptr_t>(low) % kHugePage);
  munmap(low, static_cast<size_t>(base - low));
  if (const auto after = static_cast<size_t>(low + room - base) - bytes; after > 0) munmap(base + bytes, after);
  madvise(base, bytes, MADV_HUGEPAGE);
  return base;
}

void take_small_pages(void* base, size_t bytes) { madvise(base, bytes, MADV_NOHUGEPAGE); }

void join_pages(void* base, size_t bytes) {
  constexpr uintptr_t kSmallPage = 4096;
  const auto address = reinterpret_cast<uintptr_t>(base);
  const uintptr_t begin = (address + kSmallPage - 1) / kSmallPage * kSmallPage;
  const uintptr_t end = (address + bytes) / kSmallPage * kSmallPage;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
}

void unmap_pages(void* base, size_t bytes) { munmap(base, bytes); }

}  // namespace plimsoll::runtime
