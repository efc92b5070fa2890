#include "plimsoll/runtime/threads.h"

#include <omp.h>
#include <pthread.h>
#include <sys/stat.h>

#include <algorithm>
#include <future>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "plimsoll/runtime/overflow_traps.h"

namespace plimsoll::runtime {
namespace {

thread_local bool had_threads_at_fork = false;  // the process, when this thread forked
thread_local bool pool_is_gone = false;         // on the one thread of a forked child whose parent had threads

// Linux counts a link of /proc/self/task for each thread of the process.
bool process_has_threads() {
  constexpr nlink_t kLinksOfAFolder = 2;
  struct stat folder = {};
  return stat("/proc/self/task", &folder) != 0 || folder.st_nlink > kLinksOfAFolder + 1;
}

void before_fork() { had_threads_at_fork = pool_is_gone || process_has_threads(); }

// A child has the thread that forked and none of the pool's, for which libgomp's next region would wait without end.
// torch asks OpenMP for its number of threads, so one thread is set for its operators, too.
void after_fork_in_child() {
  if (!had_threads_at_fork) return;
  pool_is_gone = true;
  omp_set_num_threads(1);
}

// Throws std::system_error unless the system grants so many threads at once.
void try_threads(int count) {
  std::vector<std::jthread> started;
  std::promise<void> end;  // goes before the threads do, which ends their waiting
  const std::shared_future<void> ended = end.get_future().share();
  for (int i = 0; i < count; ++i) started.emplace_back([ended] { ended.wait(); });
}

[[maybe_unused]] const int kRegistered = pthread_atfork(before_fork, nullptr, after_fork_in_child);

}  // namespace

int threads() { return pool_is_gone || omp_in_parallel() ? 1 : omp_get_max_threads(); }

void set_threads(int count) { omp_set_num_threads(std::max(count, 1)); }

void start_threads() {
  const int team = threads();
  if (team <= 1) return;
  try {
    try_threads(team - 1);
  } catch (const std::system_error& error) {
    throw std::runtime_error("threads: expected room for " + std::to_string(team) + ", got: " + error.code().message());
  }
  parallel_for(team, 1, [](int64_t, int64_t) {});
}

void end_threads() { omp_pause_resource(omp_pause_soft, omp_get_initial_device()); }

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
