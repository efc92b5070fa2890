// Operators that only a Python process needs: C++ calls the functions.
#include <torch/library.h>

#include "plimsoll/ops/memory/caching_allocator.h"

TORCH_LIBRARY_FRAGMENT(plimsoll, library) {
  library.def("use_caching_allocator() -> ()", [] { plimsoll::use_caching_allocator(); });
}
