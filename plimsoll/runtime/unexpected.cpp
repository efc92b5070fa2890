#include "plimsoll/runtime/unexpected.h"

#include <cstdio>
#include <cstdlib>

namespace plimsoll::runtime {

void unexpected(const char* where, int value) {
  std::fprintf(stderr, "%s: expected a value with a case of its own, got number %d\n", where, value);
  std::abort();
}

}  // namespace plimsoll::runtime
