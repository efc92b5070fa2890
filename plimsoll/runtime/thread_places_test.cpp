#include "plimsoll/runtime/thread_places.h"

#include <gtest/gtest.h>
#include <omp.h>
#include <sched.h>
#include <unistd.h>

#include <cstdlib>
#include <vector>

#include "plimsoll/runtime/team.h"
#include "plimsoll/runtime/threads.h"

namespace plimsoll::runtime {
namespace {

// Numbers of the CPUs that the calling thread may use.
std::vector<int> own_cpus() {
  cpu_set_t set;
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

// CPUs of each thread of a pool of `count`.
std::vector<std::vector<int>> cpus_of_pool(int count) {
  set_threads(count);
  std::vector<std::vector<int>> cpus(static_cast<size_t>(count));
  run_team([&](const Team& team) { cpus[static_cast<size_t>(team.index())] = own_cpus(); });
  return cpus;
}

// Workers that stay on one CPU, each on another, beside a first thread that may go anywhere.
bool are_apart(const std::vector<std::vector<int>>& pool, const std::vector<int>& all) {
  for (size_t i = 1; i < pool.size(); ++i) {
    if (pool[i] != std::vector<int>{all[i]}) return false;
  }
  return pool.front() == all;
}

bool are_anywhere(const std::vector<std::vector<int>>& pool, const std::vector<int>& all) {
  for (const std::vector<int>& cpus : pool) {
    if (cpus != all) return false;
  }
  return true;
}

// Runs each check in a process of its own: places are set once and for all.
class ThreadPlacesDeathTest : public ::testing::Test {
 protected:
  void SetUp() override {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    for (const char* name : {"OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY"}) unsetenv(name);
    if (all.size() < 2) GTEST_SKIP() << "one CPU";
  }
  const std::vector<int> all = own_cpus();
  const int count = static_cast<int>(all.size());
};

TEST_F(ThreadPlacesDeathTest, WorkersOfAPoolOfAllCpusStayOnTheirOwn) {
  const auto check = [&] {
    keep_threads_apart();
    if (!are_apart(cpus_of_pool(count), all)) _exit(1);
    if (!are_anywhere(cpus_of_pool(count + 1), all)) _exit(2);
    if (!are_apart(cpus_of_pool(count), all)) _exit(3);
    if (count > 2 && !are_anywhere(cpus_of_pool(2), all)) _exit(4);
    _exit(0);
  };
  EXPECT_EXIT(check(), ::testing::ExitedWithCode(0), "");
}

TEST_F(ThreadPlacesDeathTest, TheFirstThreadMovesToTheCpuThatIsLeft) {
  const auto check = [&] {
    keep_threads_apart();
    set_threads(count);
    cpu_set_t last;
    CPU_ZERO(&last);
    CPU_SET(all.back(), &last);
    if (sched_setaffinity(0, sizeof(last), &last) != 0) _exit(1);
    int cpu = -1;
    run_team([&](const Team& team) {
      if (team.index() == 0) cpu = sched_getcpu();
    });
    _exit(cpu == all.front() && own_cpus() == all ? 0 : 2);
  };
  EXPECT_EXIT(check(), ::testing::ExitedWithCode(0), "");
}

TEST_F(ThreadPlacesDeathTest, NobodyIsMovedUnasked) {
  const auto check = [&] { _exit(are_anywhere(cpus_of_pool(count), all) ? 0 : 1); };
  EXPECT_EXIT(check(), ::testing::ExitedWithCode(0), "");
}

TEST_F(ThreadPlacesDeathTest, PlacesThatTheUserChoseStay) {
  const auto check = [&] {
    setenv("OMP_PROC_BIND", "false", 1);  // read by OpenMP before this: the threads are where they were
    keep_threads_apart();
    _exit(are_anywhere(cpus_of_pool(count), all) ? 0 : 1);
  };
  EXPECT_EXIT(check(), ::testing::ExitedWithCode(0), "");
}

TEST_F(ThreadPlacesDeathTest, ARegionOfRangesPlacesItsThreadsToo) {
  const auto check = [&] {
    keep_threads_apart();
    set_threads(count);
    std::vector<std::vector<int>> cpus(static_cast<size_t>(count));
    parallel_for(count, 1, [](int64_t, int64_t) {});
#pragma omp parallel num_threads(count)
    cpus[static_cast<size_t>(omp_get_thread_num())] = own_cpus();
    _exit(are_apart(cpus, all) ? 0 : 1);
  };
  EXPECT_EXIT(check(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace plimsoll::runtime
