// A kernel that streams through memory against plain loops over the same buffers in the same process: bandwidth depends
// on where the pages lie and on the neighbours, so only the ratio travels.
#pragma once

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>

#include "plimsoll/kernels/limits/limits.h"
#include "plimsoll/runtime/threads.h"

namespace plimsoll::kernels::bench {

struct Stream {
  const void* input;
  int64_t input_bytes;
  void* output;  // nullptr: the kernel only reads
  int64_t output_bytes;
};

// Reads the input once and writes the output once, piece by piece as the kernels do, with nothing in between.
inline void plain_loop(const Stream& stream) {
  constexpr int64_t kPieces = 256;
  runtime::parallel_for(kPieces, 1, [&](int64_t begin, int64_t end) {
    for (int64_t piece = begin; piece < end; ++piece) {
      const int64_t first = stream.input_bytes / 8 * piece / kPieces,
                    last = stream.input_bytes / 8 * (piece + 1) / kPieces;
      const auto* words = static_cast<const uint64_t*>(stream.input);
      uint64_t mixed = 0;
      for (int64_t i = first; i < last; ++i) mixed |= words[i];
      benchmark::DoNotOptimize(mixed);
      if (stream.output == nullptr) continue;
      const int64_t out = stream.output_bytes * piece / kPieces, out_end = stream.output_bytes * (piece + 1) / kPieces;
      std::memset(static_cast<char*>(stream.output) + out, static_cast<int>(mixed), static_cast<size_t>(out_end - out));
    }
  });
}

// On one thread the thread's own CPU time, which neighbours on a shared machine disturb little.
inline double now() {
  if (runtime::threads() == 1) return thread_cpu_seconds();
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

template <class Body>
double seconds(Body body) {
  const double start = now();
  body();
  return now() - start;
}

// Times kernel() and the plain loop in turn. Counters: bytes/s moved, elements/s, and of_plain_loop = the loop's time /
// the kernel's, both the best seen.
template <class Kernel>
void run(benchmark::State& state, const Stream& stream, int64_t elements, Kernel kernel) {
  double kernel_best = 1e9, plain_best = 1e9;
  plain_loop(stream);
  kernel();
  for (auto unused : state) {
    const double time = seconds(kernel);
    kernel_best = std::min(kernel_best, time);
    state.SetIterationTime(time);
    plain_best = std::min(plain_best, seconds([&] { plain_loop(stream); }));
  }
  const double rounds = static_cast<double>(state.iterations());
  state.counters["elements/s"] =
      benchmark::Counter(static_cast<double>(elements) * rounds, benchmark::Counter::kIsRate);
  state.counters["of_plain_loop"] = plain_best / kernel_best;
  state.SetBytesProcessed(state.iterations() * (stream.input_bytes + stream.output_bytes));
}

}  // namespace plimsoll::kernels::bench
