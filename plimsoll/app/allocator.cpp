#include "plimsoll/app/allocator.h"

#include <malloc.h>

#include <climits>
#include <cstdlib>

namespace plimsoll::app {

void keep_freed_memory() {
  constexpr int kTopPad = 64 << 20;    // bytes by which the heap grows at a time
  mallopt(M_MMAP_MAX, 0);              // large blocks come from the heap too
  mallopt(M_TRIM_THRESHOLD, INT_MAX);  // and its end is not given back
  mallopt(M_TOP_PAD, kTopPad);
  mallopt(M_ARENA_MAX, 1);                               // so what one thread frees another can use
  setenv("THP_MEM_ALLOC_ENABLE", "1", /*overwrite=*/0);  // torch's CPU allocator asks for huge pages
}

}  // namespace plimsoll::app
