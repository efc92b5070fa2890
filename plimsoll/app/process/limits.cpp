#include "plimsoll/app/process/limits.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <vector>

#include "plimsoll/app/process/fresh_pages.h"
#include "plimsoll/kernels/limits/limits.h"
#include "plimsoll/kernels/limits/memory_pass.h"
#include "plimsoll/runtime/cpu.h"
#include "plimsoll/runtime/team.h"
#include "plimsoll/runtime/threads.h"

namespace plimsoll::app {
namespace {

constexpr double kSeconds = 0.1;  // of one measurement
constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kBriefBytes = 128 * kMiB;  // beyond most caches, and soon mapped

double fp32_gflops() { return kernels::measure_fp32_limit(kSeconds).rate() / 1e9; }
double bf16_gflops() { return kernels::measure_bf16_limit(kSeconds).rate() / 1e9; }
double tile_gflops() { return kernels::measure_tile_limit(kSeconds).rate() / 1e9; }

// The sum of what each thread measures, all of them at the same time.
template <class Measure>
double sum_over_threads(Measure measure) {
  std::atomic<double> sum = 0;
  runtime::run_team([&](const runtime::Team&) { sum += measure(); });
  return sum;
}

// measure(threads) returns what one of so many threads reaches.
template <class Measure>
Rate rate_of(Measure measure) {
  const int all = runtime::threads();
  return {.one_thread = measure(1), .all_threads = sum_over_threads([&] { return measure(all); })};
}

// GB/s of a body that moves `bytes`, per second of this thread's CPU time, so that neighbours on a shared machine
// disturb little.
template <class Body>
double repeat(int64_t bytes, Body body) {
  body();
  double moved = 0, seconds = 0;
  const double start = kernels::thread_cpu_seconds();
  do {
    body();
    moved += static_cast<double>(bytes);
    seconds = kernels::thread_cpu_seconds() - start;
  } while (seconds < kSeconds);
  return moved / seconds / 1e9;
}

double read_rate(int64_t bytes) {
  const FreshPages pages(static_cast<size_t>(bytes), FreshPages::Size::kHuge);
  kernels::write_memory(pages.data(), bytes);  // untouched pages are all one page of zeros
  return repeat(bytes, [&] { kernels::read_memory(pages.data(), bytes); });
}

double copy_rate(int64_t bytes) {
  const FreshPages pages(static_cast<size_t>(bytes), FreshPages::Size::kHuge);
  const int64_t half = bytes / 2;
  kernels::write_memory(pages.data(), half);
  return repeat(bytes, [&] { kernels::copy_memory(pages.data() + half, pages.data(), half); });
}

double in_place_rate(int64_t bytes) {
  const FreshPages pages(static_cast<size_t>(bytes), FreshPages::Size::kHuge);
  return repeat(2 * bytes, [&] { kernels::rewrite_memory(pages.data(), bytes); });
}

// bytes_of(threads): of the buffer that each of so many threads has.
template <class BytesOf>
MemoryRates memory_rates(BytesOf bytes_of) {
  return {.read = rate_of([&](int threads) { return read_rate(bytes_of(threads)); }),
          .copy = rate_of([&](int threads) { return copy_rate(bytes_of(threads)); }),
          .in_place = rate_of([&](int threads) { return in_place_rate(bytes_of(threads)); })};
}

Rate first_touch(FreshPages::Size size) {
  return rate_of([size](int) {
    constexpr int64_t kBytes = 64 * kMiB;
    const FreshPages pages(static_cast<size_t>(kBytes), size);
    const double start = kernels::thread_cpu_seconds();
    kernels::write_memory(pages.data(), kBytes);
    return static_cast<double>(kBytes) / (kernels::thread_cpu_seconds() - start) / 1e9;
  });
}

double fork_join_us() {
  using Clock = std::chrono::steady_clock;
  const int threads = runtime::threads();
  std::vector<double> micros(1001);
  for (double& each : micros) {
    const Clock::time_point start = Clock::now();
    runtime::parallel_for(threads, 1, [](int64_t, int64_t) {});
    each = std::chrono::duration<double, std::micro>(Clock::now() - start).count();
  }
  const auto median = micros.begin() + static_cast<std::ptrdiff_t>(micros.size() / 2);
  std::nth_element(micros.begin(), median, micros.end());
  return *median;
}

// 0 where the system does not say.
int64_t cache_bytes(int name) { return std::max<int64_t>(sysconf(name), 0); }
int64_t l2_bytes() { return std::max(cache_bytes(_SC_LEVEL2_CACHE_SIZE), kMiB / 2); }
// Twice the last cache, but what a small machine can spare.
int64_t beyond_caches() { return std::clamp(2 * cache_bytes(_SC_LEVEL3_CACHE_SIZE), 256 * kMiB, 512 * kMiB); }

bool has_pairs() { return runtime::isa() >= runtime::Isa::kAvx512Bf16; }
bool has_tiles() { return runtime::isa() >= runtime::Isa::kAmx; }

}  // namespace

MachineLimits measure_limits() {
  MachineLimits limits{.fp32_gflops = fp32_gflops(), .bf16_gflops = std::nullopt, .tile_gflops = std::nullopt};
  if (has_pairs()) limits.bf16_gflops = bf16_gflops();
  if (has_tiles()) limits.tile_gflops = tile_gflops();
  const int threads = runtime::threads();
  limits.read_gbytes_per_s = sum_over_threads([&] { return read_rate(kBriefBytes / threads); });
  return limits;
}

AllLimits measure_all_limits() {
  AllLimits limits{.fp32_gflops = rate_of([](int) { return fp32_gflops(); }),
                   .bf16_gflops = std::nullopt,
                   .tile_gflops = std::nullopt,
                   .l2 = memory_rates([](int) { return l2_bytes() / 2; }),
                   // Large against L2, small against any L3; threads share it.
                   .l3 = memory_rates([](int) { return 4 * l2_bytes(); }),
                   .memory = memory_rates([](int threads) { return beyond_caches() / threads; }),
                   .first_touch = first_touch(FreshPages::Size::kSmall),
                   .first_touch_huge = first_touch(FreshPages::Size::kHuge),
                   .fork_join_us = fork_join_us()};
  if (has_pairs()) limits.bf16_gflops = rate_of([](int) { return bf16_gflops(); });
  if (has_tiles()) limits.tile_gflops = rate_of([](int) { return tile_gflops(); });
  return limits;
}

}  // namespace plimsoll::app
