// A kernel that streams through memory against plain passes over the same buffers in the same process: bandwidth
// depends on where the pages lie and on the neighbours, so only the ratio travels.
#pragma once

#include <chrono>
#include <cstdint>

#include "plimsoll/kernels/bench_report.h"
#include "plimsoll/kernels/limits/limits.h"
#include "plimsoll/kernels/limits/memory_pass.h"
#include "plimsoll/runtime/threads.h"

namespace plimsoll::kernels::bench {

struct Stream {
  const void* input;
  int64_t input_bytes;
  void* output;  // nullptr: the kernel only reads; the input itself: it works in place
  int64_t output_bytes;
};

// Reads the input once and writes the output once, piece by piece as the kernels do, with nothing in between.
inline void plain_loop(const Stream& stream) {
  constexpr int64_t kPieceBytes = 65536, kWord = 64;
  const int64_t pieces = (stream.input_bytes + stream.output_bytes + kPieceBytes - 1) / kPieceBytes;
  const auto piece_of = [=](int64_t bytes, int64_t piece) { return bytes / kWord * piece / pieces * kWord; };
  runtime::parallel_for(pieces, 1, [&](int64_t begin, int64_t end) {
    for (int64_t piece = begin; piece < end; ++piece) {
      const int64_t from = piece_of(stream.input_bytes, piece), to = piece_of(stream.output_bytes, piece);
      const int64_t read = piece_of(stream.input_bytes, piece + 1) - from;
      const int64_t written = piece_of(stream.output_bytes, piece + 1) - to;
      auto* output = static_cast<char*>(stream.output);
      if (stream.output == stream.input) {
        rewrite_memory(output + to, written);
      } else {
        read_memory(static_cast<const char*>(stream.input) + from, read);
        write_memory(output + to, written);
      }
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

// Times kernel() and plain(), which move `bytes` both, in turn.
template <class Kernel, class Plain>
void run(benchmark::State& state, int64_t bytes, Kernel kernel, Plain plain) {
  const auto size = static_cast<double>(bytes);
  Rounds rounds;
  plain();
  kernel();
  repeat(state, [&] {
    const double limit = size / seconds(plain);
    const double time = seconds(kernel);
    rounds.add(size / time, limit);
    return time;
  });
  rounds.report(state, "GB/s");
}

// The same against plain_loop(stream), with the elements/s that the kernel does.
template <class Kernel>
void run(benchmark::State& state, const Stream& stream, int64_t elements, Kernel kernel) {
  run(state, stream.input_bytes + stream.output_bytes, kernel, [&] { plain_loop(stream); });
  state.counters["elements/s"] = benchmark::Counter(
      static_cast<double>(elements) * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}

}  // namespace plimsoll::kernels::bench
