#include "plimsoll/runtime/threads.h"

#include <omp.h>

#include <algorithm>

#include "plimsoll/runtime/overflow_traps.h"

namespace plimsoll::runtime {

int threads() { return omp_in_parallel() ? 1 : omp_get_max_threads(); }

void set_threads(int count) { omp_set_num_threads(std::max(count, 1)); }

int thread_index() { return omp_get_thread_num(); }

void parallel_for(int64_t count, int64_t grain, RangeFunction body) {
  if (count <= 0) return;
  grain = std::max<int64_t>(grain, 1);
  const int64_t pieces = (count + grain - 1) / grain;
  const int team = static_cast<int>(std::min<int64_t>(pieces, threads()));
  OverflowLog* const log = overflow_log();
  if (team <= 1) {
    const ArmOverflow arm(log);
    body(0, count);
    return;
  }
#pragma omp parallel num_threads(team)
  {
    const int64_t index = omp_get_thread_num(), size = omp_get_num_threads();
    const int64_t begin = pieces * index / size * grain;
    const int64_t end = std::min(pieces * (index + 1) / size * grain, count);
    if (begin < end) {
      const ArmOverflow arm(log);
      body(begin, end);
    }
  }
}

}  // namespace plimsoll::runtime
