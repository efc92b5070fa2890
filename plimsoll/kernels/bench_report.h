// Name and figures of every kernel's benchmark: its rate, the limit measured in turn with it, and the share, so that
// figures of machines and days compare.
#pragma once

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <type_traits>
#include <vector>

namespace plimsoll::kernels::bench {

inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Rates of the kernel and of its limit, a pair a round.
class Rounds {
 public:
  void add(double rate, double limit) {
    rates_.push_back(rate * 1e-9);
    limits_.push_back(limit * 1e-9);
    shares_.push_back(100.0 * rate / limit);
  }

  // Medians, as the counters `unit` ("GB/s" or "GFLOP/s"), "limit" in the same unit, and "share_%".
  void report(benchmark::State& state, const char* unit) const {
    state.counters[unit] = median(rates_);
    state.counters["limit"] = median(limits_);
    state.counters["share_%"] = median(shares_);
    state.counters["rounds"] = static_cast<double>(rates_.size());
  }

 private:
  std::vector<double> rates_, limits_, shares_;
};

// Rounds for each iteration that Google Benchmark asks for, and five at least, as it asks for one where that takes long
// enough; three where they take over two seconds. round() returns the kernel's seconds.
template <class Round>
void repeat(benchmark::State& state, Round round) {
  int done = 0;
  double spent = 0;
  const auto run = [&] {
    const double seconds = round();
    ++done;
    spent += seconds;
    return seconds;
  };
  for (auto unused : state) state.SetIterationTime(run());
  while (done < 3 || (done < 5 && spent < 2)) run();
}

// One benchmark for each size (state.range(0)), named "kernel/case/size". Returns true, to initialise a constant with.
template <class... Args>
bool add(const std::string& name, std::initializer_list<int64_t> sizes, void (*body)(benchmark::State&, Args...),
         std::type_identity_t<Args>... args) {
  auto* added = benchmark::RegisterBenchmark(name.c_str(), body, args...)->UseManualTime();
  for (int64_t size : sizes) added->Arg(size);
  return true;
}

}  // namespace plimsoll::kernels::bench
