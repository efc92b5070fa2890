// Medians of the GFLOP/s of each product against the limit of what it is multiplied with (FP32 FMA, or VDPBF16PS),
// measured between the products. Both are per CPU second of the threads at work; `wall` is what a clock shows.
//   gemm_bench --benchmark_filter=e4m3       GEMM_BENCH_THREADS=2 gemm_bench
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "plimsoll/format/codec.h"
#include "plimsoll/kernels/gemm/gemm.h"
#include "plimsoll/kernels/limits/limits.h"
#include "plimsoll/runtime/cpu.h"
#include "plimsoll/runtime/threads.h"

namespace plimsoll::kernels {
namespace {

using format::Format;

struct Case {
  std::string name;
  int64_t m, n, k;
  Format a, b, output;
  bool a_transposed = false, b_transposed = false;  // k is the slower dimension
  bool packed = false;
  GemmEpilogue epilogue = {};
};

std::vector<uint8_t> random_elements(Format format, int64_t count) {
  std::mt19937 random(1);
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  const size_t size = static_cast<size_t>(format::bytes(format));
  std::vector<uint8_t> result(static_cast<size_t>(count) * size);
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
    const uint32_t code = format::encode(format, uniform(random));
    __builtin_memcpy(result.data() + i * size, &code, size);
  }
  return result;
}

GemmOperand operand(const std::vector<uint8_t>& data, Format format, int64_t rows, int64_t k, bool transposed) {
  return {.data = data.data(), .format = format, .row_stride = transposed ? 1 : k, .k_stride = transposed ? rows : 1};
}

bool multiplies_pairs(const Case& c) {
  auto narrow = [](Format format) { return format == Format::kBf16 || format::is_fp8(format); };
  return runtime::matmul_isa() >= runtime::Isa::kAvx512Bf16 && narrow(c.a) && narrow(c.b);
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

void run(benchmark::State& state, Case c) {
  const char* threads = std::getenv("GEMM_BENCH_THREADS");
  runtime::set_threads(threads == nullptr ? 1 : std::atoi(threads));
  const std::vector<uint8_t> a = random_elements(c.a, c.m * c.k), b = random_elements(c.b, c.n * c.k);
  std::vector<uint8_t> output(static_cast<size_t>(c.m * c.n * format::bytes(c.output)));
  std::vector<float> bias(static_cast<size_t>(c.n), 0.1f);
  std::vector<uint8_t> aux(static_cast<size_t>(c.epilogue.activation == GemmActivation::kNone ? 0 : c.m * c.n * 2));
  Gemm gemm_args = {.a = operand(a, c.a, c.m, c.k, c.a_transposed),
                    .b = operand(b, c.b, c.n, c.k, c.b_transposed),
                    .m = c.m,
                    .n = c.n,
                    .k = c.k,
                    .output = output.data(),
                    .output_format = c.output,
                    .output_stride = c.n,
                    .epilogue = c.epilogue};
  gemm_args.epilogue.alpha = 1.0f / static_cast<float>(c.k);
  if (c.epilogue.activation != GemmActivation::kNone) {
    gemm_args.epilogue.bias = bias.data();
    gemm_args.epilogue.aux = aux.data();
    gemm_args.epilogue.aux_stride = c.n;
  }
  std::vector<uint8_t> packed;
  if (c.packed) {
    packed.resize(gemm_packed_b_bytes(gemm_args.b, c.n, c.k));
    gemm_pack_b(gemm_args.b, c.n, c.k, packed.data());
    gemm_args.packed_b = packed.data();
  }
  gemm(gemm_args);

  const auto measure_limit = multiplies_pairs(c) ? measure_bf16_limit : measure_fp32_limit;
  std::vector<double> rates, limits, shares, walls;
  const double operations = 2.0 * static_cast<double>(c.m * c.n * c.k);
  for (auto _ : state) {
    const double limit = measure_limit(0.002).rate();
    const auto start = std::chrono::steady_clock::now();
    const double cpu = process_cpu_seconds();
    gemm(gemm_args);
    const double rate = operations / (process_cpu_seconds() - cpu);
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    state.SetIterationTime(elapsed.count());
    rates.push_back(rate * 1e-9);
    limits.push_back(limit * 1e-9);
    shares.push_back(100.0 * rate / limit);
    walls.push_back(operations / elapsed.count() * 1e-9);
  }
  state.counters["GFLOP/s"] = median(rates);
  state.counters["limit"] = median(limits);
  state.counters["best"] = *std::max_element(rates.begin(), rates.end());
  state.counters["share_%"] = median(shares);
  state.counters["wall_GFLOP/s"] = median(walls);
}

std::string short_name(Format format) { return std::string(format::info(format).name); }

std::vector<Case> cases() {
  std::vector<Case> result;
  const std::pair<Format, Format> pairs[] = {{Format::kFp32, Format::kFp32},
                                             {Format::kFp16, Format::kFp16},
                                             {Format::kBf16, Format::kBf16},
                                             {Format::kE4m3, Format::kE4m3},
                                             {Format::kE5m2, Format::kE4m3}};
  struct Shape {
    int64_t tokens, in, out;
  };
  for (const auto& [a, b] : pairs) {
    const std::string formats = short_name(a) + "*" + short_name(b);
    const Format wide = a == Format::kFp32 ? Format::kFp32 : Format::kBf16;
    for (int64_t size : {512, 1024, 2048}) {
      const std::string cube = formats + "/cube/" + std::to_string(size);
      result.push_back({cube + "/nt_packed", size, size, size, a, b, wide, false, false, true});
      result.push_back({cube + "/nt", size, size, size, a, b, wide});
      result.push_back({cube + "/nn", size, size, size, a, b, wide, false, true});
      result.push_back({cube + "/tn", size, size, size, a, b, Format::kFp32, true, true});
    }
    for (const Shape& s : {Shape{2048, 256, 1024}, Shape{2048, 1024, 256}, Shape{4096, 384, 1152},
                           Shape{2048, 768, 2304}, Shape{2048, 768, 3072}, Shape{2048, 3072, 768}}) {
      const std::string name =
          formats + "/gpt/" + std::to_string(s.tokens) + "x" + std::to_string(s.in) + "x" + std::to_string(s.out);
      result.push_back({name + "/output", s.tokens, s.out, s.in, a, b, wide, false, false, true});
      result.push_back({name + "/grad_input", s.tokens, s.in, s.out, a, b, wide, false, true, true});
      result.push_back({name + "/grad_weight", s.out, s.in, s.tokens, a, b, Format::kFp32, true, true});
    }
    for (int64_t rows : {1, 4, 16, 64}) {
      result.push_back({formats + "/rows/" + std::to_string(rows), rows, 4096, 4096, a, b, wide});
      result.push_back(
          {formats + "/rows_packed/" + std::to_string(rows), rows, 4096, 4096, a, b, wide, false, false, true});
    }
  }
  for (Format output : {Format::kFp32, Format::kBf16, Format::kE4m3}) {
    Case c = {
        "epilogue/" + short_name(output), 2048, 3072, 768, Format::kE4m3, Format::kE4m3, output, false, false, true};
    result.push_back(c);
    c.name += "/bias_gelu";
    c.epilogue.activation = GemmActivation::kGelu;
    result.push_back(c);
  }
  return result;
}

const bool kRegistered = [] {
  for (const Case& c : cases()) {
    benchmark::RegisterBenchmark(c.name.c_str(), run, c)->UseManualTime()->MinTime(0.2);
  }
  return true;
}();

}  // namespace
}  // namespace plimsoll::kernels
