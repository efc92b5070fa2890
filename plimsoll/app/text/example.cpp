#include "plimsoll/app/text/example.h"

#include <numeric>

namespace plimsoll::app {

int64_t Example::counted() const { return std::accumulate(counts.begin(), counts.end(), int64_t{0}); }

int64_t Examples::counted() const {
  int64_t sum = 0;
  for (const Example& example : all) sum += example.counted();
  return sum;
}

}  // namespace plimsoll::app
