#include "plimsoll/app/process/fresh_pages.h"

#include <sys/mman.h>

#include <new>

namespace plimsoll::app {

FreshPages::FreshPages(size_t bytes, Size size)
    : data_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)), bytes_(bytes) {
  if (data_ == MAP_FAILED) throw std::bad_alloc();
  // Advice: a system without huge pages gives small ones.
  madvise(data_, bytes_, size == Size::kHuge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
}

FreshPages::~FreshPages() { munmap(data_, bytes_); }

}  // namespace plimsoll::app
