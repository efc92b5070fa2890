#include "plimsoll/runtime/threads.h"

#include <omp.h>
#include <pthread.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <span>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "plimsoll/runtime/divide_up.h"
#include "plimsoll/runtime/overflow_traps.h"
#include "plimsoll/runtime/thread_places.h"

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

// The part of a range that is one thread's at first, in pieces. Whoever has none left takes one of another's.
struct alignas(64) Share {
  std::atomic<int64_t> next = 0;
  int64_t end = 0, piece = 0;  // of grains

  // Calls body on one piece after another until none is left.
  void run(int64_t grain, int64_t count, RangeFunction body) {
    while (next.load(std::memory_order_relaxed) < end) {
      const int64_t begin = next.fetch_add(piece, std::memory_order_relaxed);
      if (begin < end) body(begin * grain, std::min(std::min(begin + piece, end) * grain, count));
    }
  }
};
// Pieces of a share: a thread that stands still holds the others up by one at most.
constexpr int64_t kPieces = 8;

// Shares of a region that this thread begins; it begins one at a time.
std::span<Share> shares_of(int64_t grains, int64_t team) {
  thread_local std::vector<Share> shares;
  if (static_cast<int64_t>(shares.size()) < team) shares = std::vector<Share>(static_cast<size_t>(team));
  for (int64_t i = 0; i < team; ++i) {
    Share& share = shares[static_cast<size_t>(i)];
    const int64_t begin = grains * i / team;
    share.next.store(begin, std::memory_order_relaxed);
    share.end = grains * (i + 1) / team;
    share.piece = divide_up(share.end - begin, kPieces);
  }
  return {shares.data(), static_cast<size_t>(team)};
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

void parallel_for(int64_t count, int64_t grain, RangeFunction body) {
  if (count <= 0) return;
  grain = std::max<int64_t>(grain, 1);
  const int64_t grains = divide_up(count, grain);
  const int pool = threads();
  const int team = static_cast<int>(std::min<int64_t>(grains, pool));
  OverflowLog* const log = overflow_log();
  if (team <= 1) {
    const ArmOverflow arm(log);
    body(0, count);
    return;
  }
  const std::span<Share> shares = shares_of(grains, team);
#pragma omp parallel num_threads(team)
  {
    take_place(omp_get_thread_num(), pool);
    const auto index = static_cast<size_t>(omp_get_thread_num());
    const ArmOverflow arm(log);
    for (size_t i = 0; i < shares.size(); ++i) shares[(index + i) % shares.size()].run(grain, count, body);
  }
}

}  // namespace plimsoll::runtime
