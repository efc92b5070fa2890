#include "plimsoll/app/limits.h"

#include <atomic>
#include <cstdint>
#include <numeric>
#include <vector>

#include "plimsoll/kernels/limits/limits.h"
#include "plimsoll/runtime/cpu.h"
#include "plimsoll/runtime/threads.h"

namespace plimsoll::app {
namespace {

// Bytes per second of CPU time, summed over the threads while all of them read, so that neighbours on a shared machine
// disturb little.
double read_rate() {
  constexpr int64_t kWords = int64_t{1} << 24;  // 128 MiB a round
  constexpr int kRounds = 5;
  const std::vector<uint64_t> words(kWords, 1);
  std::atomic<uint64_t> total = 0;
  std::atomic<double> rate = 0;
  runtime::parallel_for(kWords, 1024, [&](int64_t begin, int64_t end) {
    const double start = kernels::thread_cpu_seconds();
    for (int round = 0; round < kRounds; ++round) {
      total += std::accumulate(words.begin() + begin, words.begin() + end, uint64_t{0});
    }
    rate += static_cast<double>(kRounds * (end - begin)) * sizeof(uint64_t) / (kernels::thread_cpu_seconds() - start);
  });
  return rate / 1e9;
}

}  // namespace

MachineLimits measure_limits() {
  constexpr double kSeconds = 0.1;
  MachineLimits limits{.fp32_gflops = kernels::measure_fp32_limit(kSeconds).rate() / 1e9, .bf16_gflops = std::nullopt};
  if (runtime::isa() >= runtime::Isa::kAvx512Bf16) {
    limits.bf16_gflops = kernels::measure_bf16_limit(kSeconds).rate() / 1e9;
  }
  limits.read_gbytes_per_s = read_rate();
  return limits;
}

}  // namespace plimsoll::app
