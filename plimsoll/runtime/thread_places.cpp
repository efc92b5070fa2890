#include "plimsoll/runtime/thread_places.h"

#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <vector>

namespace plimsoll::runtime {
namespace {

// A set of CPUs of the size that this machine needs.
class CpuSet {
 public:
  explicit CpuSet(size_t cpus) : words_((cpus + kBits - 1) / kBits) {}
  void add(size_t cpu) { words_[cpu / kBits] |= 1UL << cpu % kBits; }
  bool holds(size_t cpu) const { return (words_[cpu / kBits] >> cpu % kBits & 1) != 0; }
  size_t size() const { return words_.size() * kBits; }
  bool read_from_thread() { return sched_getaffinity(0, bytes(), as_linux(words_)) == 0; }
  void give_to_thread() const { sched_setaffinity(0, bytes(), as_linux(words_)); }

 private:
  static constexpr size_t kBits = 8 * sizeof(unsigned long);
  size_t bytes() const { return words_.size() * sizeof(unsigned long); }
  static cpu_set_t* as_linux(std::vector<unsigned long>& words) { return reinterpret_cast<cpu_set_t*>(words.data()); }
  static const cpu_set_t* as_linux(const std::vector<unsigned long>& words) {
    return reinterpret_cast<const cpu_set_t*>(words.data());
  }
  std::vector<unsigned long> words_;
};

struct Places {
  CpuSet all;
  std::vector<size_t> cpus;

  CpuSet of(int index) const {
    CpuSet one(all.size());
    one.add(cpus[static_cast<size_t>(index)]);
    return one;
  }
};

const Places* places = nullptr;  // set once, between regions

bool user_places_threads() {
  return std::ranges::any_of(std::initializer_list<const char*>{"OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY"},
                             [](const char* name) { return std::getenv(name) != nullptr; });
}

}  // namespace

void keep_threads_apart() {
  if (places != nullptr || user_places_threads()) return;
  constexpr size_t kMostCpus = 1 << 16;
  CpuSet all(CPU_SETSIZE);
  while (!all.read_from_thread()) {  // a machine with more CPUs than the set holds
    if (all.size() >= kMostCpus) return;
    all = CpuSet(2 * all.size());
  }
  std::vector<size_t> cpus;
  for (size_t cpu = 0; cpu < all.size(); ++cpu) {
    if (all.holds(cpu)) cpus.push_back(cpu);
  }
  if (cpus.size() > 1) places = std::make_unique<Places>(Places{std::move(all), std::move(cpus)}).release();
}

void take_place(int index, int pool) {
  constexpr int kAnywhere = -1;
  thread_local int taken = kAnywhere;
  if (places == nullptr) return;
  const bool has_place = static_cast<size_t>(pool) == places->cpus.size();
  if (index == 0) {
    if (!has_place || sched_getcpu() == static_cast<int>(places->cpus.front())) return;
    places->of(0).give_to_thread();
    places->all.give_to_thread();
    return;
  }
  const int wanted = has_place ? index : kAnywhere;
  if (wanted == taken) return;
  taken = wanted;
  (has_place ? places->of(index) : places->all).give_to_thread();
}

}  // namespace plimsoll::runtime
