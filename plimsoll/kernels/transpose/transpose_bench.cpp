#include <benchmark/benchmark.h>

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "plimsoll/kernels/bench_data.h"
#include "plimsoll/kernels/stream_bench.h"
#include "plimsoll/kernels/transpose/transpose.h"

namespace plimsoll::kernels {
namespace {

// [rows, 4096]: 64 rows stay in the L2 cache, 16384 come from memory.
constexpr int64_t kCols = 4096;

void transpose_bench(benchmark::State& state, int64_t element_bytes) {
  const int64_t rows = state.range(0), bytes = rows * kCols * element_bytes;
  std::vector<uint8_t> x(static_cast<size_t>(bytes), 1), storage(x.size() + 64);
  uint8_t* output = bench::first_line(storage);
  const Transpose args = {.x = x.data(),
                          .element_bytes = element_bytes,
                          .rows = rows,
                          .cols = kCols,
                          .x_stride = kCols,
                          .output = output,
                          .output_stride = rows};
  bench::run(state, {x.data(), bytes, output, bytes}, rows * kCols, [&] { transpose(args); });
}

constexpr std::initializer_list<int64_t> kSizes = {64, 16384};
const bool kRegistered[] = {
    bench::add("transpose/bytes", kSizes, transpose_bench, 1),
    bench::add("transpose/halves", kSizes, transpose_bench, 2),
    bench::add("transpose/words", kSizes, transpose_bench, 4),
};

}  // namespace
}  // namespace plimsoll::kernels
