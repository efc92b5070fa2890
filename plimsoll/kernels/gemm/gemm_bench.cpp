// gemm/<formats>/<layout>/<m>x<n>x<k>: the GFLOP/s of each product against the limit of what it is multiplied with
// (FP32 FMA, or VDPBF16PS), measured between the products. Both are per CPU second of the threads at work; `share_%` is
// the median, `best_share_%` the best rate over the median limit, `wall` what a clock shows.
// rows/<formats>/<layout>/<m>x<n>x<k>: few rows, where B is read once, against a plain read of the same bytes.
// team/<formats>/<layout>/<m>x<n>x<k>: the same as a step of generation does it: products of as many weights as caches do
// not hold, one after the other on a team of threads, each thread a part of the columns.
//   plimsoll_bench --threads 2 --benchmark_filter=gemm/e4m3       OMP_NUM_THREADS=1 kernels_gemm_bench
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "plimsoll/format/codec.h"
#include "plimsoll/kernels/gemm/gemm.h"
#include "plimsoll/kernels/gemm/gemm_packed.h"
#include "plimsoll/kernels/limits/limits.h"
#include "plimsoll/kernels/stream_bench.h"
#include "plimsoll/runtime/cpu.h"
#include "plimsoll/runtime/team.h"
#include "plimsoll/runtime/threads.h"

namespace plimsoll::kernels {
namespace {

using bench::median;
using format::Format;

enum class Layout { kNtPacked, kNt, kNn, kTn };
constexpr const char* kLayoutNames[] = {"nt_packed", "nt", "nn", "tn"};

// An operand's format, and that of its scales for blocks of so many k of a row; no block: no scales.
struct Elements {
  Elements(Format elements, Format scales = Format::kFp32, int64_t length = 0)
      : format(elements), scale(scales), block(length) {}

  bool operator==(const Elements&) const = default;
  std::string name() const {
    if (format == Format::kE2m1) return scale == Format::kE4m3 ? "nvfp4" : "mxfp4";
    return std::string(format::info(format).name) + (block == 0 ? "" : "_blocks");
  }

  Format format, scale;
  int64_t block;
};
const Elements kNvfp4(Format::kE2m1, Format::kE4m3, 16), kMxfp4(Format::kE2m1, Format::kE8m0, 32),
    kE4m3Blocks(Format::kE4m3, Format::kFp32, 128);

struct Case {
  std::string group;
  Layout layout = Layout::kNt;
  int64_t m = 0, n = 0, k = 0;
  Elements a = Format::kFp32, b = Format::kFp32;
  Format output = Format::kFp32;
  GemmActivation activation = GemmActivation::kNone;
  bool bias = false, accumulate = false, column_sum = false;

  std::string name() const {
    return group + "/" + kLayoutNames[static_cast<int>(layout)] + "/" + std::to_string(m) + "x" + std::to_string(n) +
           "x" + std::to_string(k);
  }
};

// On a cache line, as torch's tensors are.
class Buffer {
 public:
  explicit Buffer(int64_t bytes)
      : bytes_(std::max<int64_t>((bytes + 63) / 64 * 64, 64)),
        data_(static_cast<uint8_t*>(std::aligned_alloc(64, static_cast<size_t>(bytes_)))) {
    std::fill_n(data_.get(), bytes_, uint8_t{0});
  }
  uint8_t* data() const { return data_.get(); }
  int64_t bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(uint8_t* p) const { std::free(p); }
  };
  int64_t bytes_;
  std::unique_ptr<uint8_t[], Free> data_;
};

// Codes of a tensor's own scale: few of them are zero or subnormal.
Buffer random_elements(const Elements& elements, int64_t count) {
  const Format format = elements.format;
  if (format == Format::kE2m1) {
    Buffer pairs(count / 2);
    for (int64_t i = 0; i < count / 2; ++i) pairs.data()[i] = static_cast<uint8_t>(i * 2654435761u >> 24);
    return pairs;
  }
  const int64_t size = format::bytes(format);
  const auto amax = static_cast<float>(format::is_fp8(format) ? format::max_finite(format) : 1);
  Buffer result(count * size);
  uint32_t random = 1;
  for (int64_t i = 0; i < count; ++i) {
    random = random * 1664525u + 1013904223u;
    const uint32_t code = format::encode(format, amax * (static_cast<float>(random >> 8) * 0x1p-23f - 1.0f));
    __builtin_memcpy(result.data() + i * size, &code, static_cast<size_t>(size));
  }
  return result;
}

// The operands of a case, and B packed where the layout says so.
class Problem {
 public:
  explicit Problem(const Case& c)
      : a_(random_elements(c.a, c.m * c.k)),
        b_(random_elements(c.b, c.n * c.k)),
        a_scale_(block_scales(c.a, c.m * c.k)),
        b_scale_(block_scales(c.b, c.n * c.k)),
        output_(c.m * c.n * format::bytes(c.output)),
        aux_(c.activation == GemmActivation::kNone ? 0 : c.m * c.n * 2),
        vector_(c.n * 4),
        packed_(0) {
    const bool a_transposed = c.layout == Layout::kTn, b_transposed = a_transposed || c.layout == Layout::kNn;
    gemm_ = {.a = operand(a_, c.a, c.m, c.k, a_transposed),
             .b = operand(b_, c.b, c.n, c.k, b_transposed),
             .m = c.m,
             .n = c.n,
             .k = c.k,
             .output = output_.data(),
             .output_format = c.output,
             .output_stride = c.n,
             .epilogue = {.alpha = 1.0f / static_cast<float>(c.k),
                          .bias = c.bias ? reinterpret_cast<const float*>(vector_.data()) : nullptr,
                          .activation = c.activation,
                          .aux = c.activation == GemmActivation::kNone ? nullptr : aux_.data(),
                          .aux_stride = c.n,
                          .column_sum = c.column_sum ? reinterpret_cast<float*>(vector_.data()) : nullptr,
                          .accumulate = c.accumulate}};
    gemm_.a.scale = scale_view(a_scale_, c.a, c.k);
    gemm_.b.scale = scale_view(b_scale_, c.b, c.k);
    if (c.layout != Layout::kNtPacked) return;
    packed_ = Buffer(static_cast<int64_t>(gemm_packed_b_bytes(gemm_.b, c.n, c.k)));
    gemm_pack_b(gemm_.b, c.n, c.k, packed_.data());
    gemm_.packed_b = packed_.data();
  }

  void multiply() const { plimsoll::kernels::gemm(gemm_); }
  const Gemm& gemm() const { return gemm_; }
  const Buffer& read_once() const { return gemm_.packed_b == nullptr ? b_ : packed_; }

 private:
  static GemmOperand operand(const Buffer& data, const Elements& elements, int64_t rows, int64_t k, bool transposed) {
    return {.data = data.data(),
            .format = elements.format,
            .row_stride = transposed ? 1 : k,
            .k_stride = transposed ? rows : 1};
  }
  // 1 in each format; k is a multiple of a block.
  static Buffer block_scales(const Elements& elements, int64_t count) {
    if (elements.block == 0) return Buffer(0);
    const uint32_t one = format::encode(elements.scale, 1.0f);
    const int64_t size = format::bytes(elements.scale);
    Buffer scales(count / elements.block * size);
    for (int64_t i = 0; i < scales.bytes(); i += size) {
      __builtin_memcpy(scales.data() + i, &one, static_cast<size_t>(size));
    }
    return scales;
  }
  static ScaleView scale_view(const Buffer& scales, const Elements& elements, int64_t k) {
    if (elements.block == 0) return {};
    return {.data = scales.data(),
            .format = elements.scale,
            .block_rows = 1,
            .block_cols = elements.block,
            .row_stride = k / elements.block,
            .col_stride = 1};
  }

  Buffer a_, b_, a_scale_, b_scale_, output_, aux_, vector_, packed_;
  Gemm gemm_;
};

// Weights of 64 Mi elements do not fit into caches that one user can count on.
constexpr int64_t kElementsOfMemory = int64_t{64} << 20;

// The problem's weight as often as memory takes, each multiplied once.
class TeamProblem {
 public:
  explicit TeamProblem(const Case& c)
      : problem_(c), count_(kElementsOfMemory / (c.n * c.k) + 1), weights_(count_ * problem_.read_once().bytes()) {
    for (int64_t i = 0; i < count_; ++i) std::copy_n(problem_.read_once().data(), each(), weights_.data() + i * each());
  }

  void multiply() const {
    const Gemm& whole = problem_.gemm();
    const int64_t panels = (whole.n + kPackedColumns - 1) / kPackedColumns;
    runtime::run_team([&](const runtime::Team& team) {
      const int64_t begin = panels * team.index() / team.size() * kPackedColumns;
      const int64_t end = std::min(panels * (team.index() + 1) / team.size() * kPackedColumns, whole.n);
      Gemm part = whole;
      part.n = end - begin;
      part.output = static_cast<char*>(whole.output) + begin * format::bytes(whole.output_format);
      for (int64_t i = 0; i < count_; ++i) {
        const uint8_t* const weight = weights_.data() + i * each();
        if (whole.packed_b == nullptr) {
          part.b.data = weight + begin * whole.b.row_stride * format::bytes(whole.b.format);  // never E2M1
        } else {
          part.packed_b = gemm_packed_from(weight, whole.b, whole.k, begin);
        }
        if (part.n > 0) gemm(part);
        team.wait();
      }
    });
  }
  const Buffer& read_once() const { return weights_; }

 private:
  int64_t each() const { return problem_.read_once().bytes(); }

  Problem problem_;
  int64_t count_;
  Buffer weights_;
};

// The limit of the multiply-adds that the product is made of.
Measured measure_limit(const Case& c, double seconds) {
  auto narrow = [](const Elements& x) { return x.format == Format::kBf16 || format::is_code(x.format); };
  const runtime::Isa isa = runtime::matmul_isa();
  const bool tiles = isa >= runtime::Isa::kAmx;
  if (narrow(c.a) && narrow(c.b) && isa >= runtime::Isa::kAvx512Bf16) {
    return tiles ? measure_tile_limit(seconds) : measure_bf16_limit(seconds);
  }
  if (!(tiles && c.a.format == Format::kFp16 && c.b.format == Format::kFp16)) return measure_fp32_limit(seconds);
  Measured limit = measure_tile_limit(seconds);
  limit.operations /= 4;  // four products of halves
  return limit;
}

struct Time {
  double cpu, wall;
};

template <class Body>
Time time_of(Body body) {
  const auto start = std::chrono::steady_clock::now();
  const double cpu = process_cpu_seconds();
  body();
  const double used = process_cpu_seconds() - cpu;
  return {used, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()};
}

void run_products(benchmark::State& state, const Case& c) {
  const Problem problem(c);
  problem.multiply();
  std::vector<double> rates, limits, shares, walls;
  const double operations = 2e-9 * static_cast<double>(c.m * c.n * c.k);
  bench::repeat(state, [&] {
    const double limit = measure_limit(c, 0.002).rate() * 1e-9;
    const Time time = time_of([&] { problem.multiply(); });
    rates.push_back(operations / time.cpu);
    limits.push_back(limit);
    shares.push_back(100.0 * rates.back() / limit);
    walls.push_back(operations / time.wall);
    return time.wall;
  });
  state.counters["GFLOP/s"] = median(rates);
  state.counters["limit"] = median(limits);
  state.counters["share_%"] = median(shares);
  state.counters["best_share_%"] = 100.0 * *std::max_element(rates.begin(), rates.end()) / median(limits);
  state.counters["wall_GFLOP/s"] = median(walls);
  state.counters["rounds"] = static_cast<double>(rates.size());
}

template <class Problem>
void run_rows(benchmark::State& state, const Case& c) {
  const Problem problem(c);
  const Buffer& read = problem.read_once();
  const bench::Stream stream{read.data(), read.bytes(), nullptr, 0};
  bench::run(
      state, read.bytes(), [&] { problem.multiply(); }, [&] { bench::plain_loop(stream); });
}

std::string names_of(const Elements& a, const Elements& b) { return a.name() + "*" + b.name(); }
Format output_of(const Elements& a) { return a.format == Format::kFp32 ? Format::kFp32 : Format::kBf16; }

// Scaled blocks lie along k in both operands.
void add_block_products(std::vector<Case>& cases, const Elements& a, const Elements& b) {
  for (int64_t size : {512, 1024, 2048, 4096}) {
    for (Layout layout : {Layout::kNtPacked, Layout::kNt}) {
      cases.push_back({"gemm/" + names_of(a, b), layout, size, size, size, a, b, Format::kBf16});
    }
  }
}

void add_products(std::vector<Case>& cases, const Elements& a, const Elements& b) {
  const Format wide = output_of(a);
  const std::string group = "gemm/" + names_of(a, b);
  for (int64_t size : {512, 1024, 2048, 4096}) {
    for (Layout layout : {Layout::kNtPacked, Layout::kNt, Layout::kNn}) {
      cases.push_back({group, layout, size, size, size, a, b, wide});
    }
    cases.push_back({group, Layout::kTn, size, size, size, a, b, Format::kFp32});
  }
  struct Linear {
    int64_t tokens, in, out;
  };
  for (const Linear& s : {Linear{4096, 384, 1152}, Linear{4096, 384, 384}, Linear{4096, 384, 1536},
                          Linear{4096, 1536, 384}, Linear{2048, 768, 2304}, Linear{2048, 768, 768},
                          Linear{2048, 768, 3072}, Linear{2048, 3072, 768}, Linear{2048, 768, 50257}}) {
    cases.push_back({group, Layout::kNt, s.tokens, s.out, s.in, a, b, wide});
    cases.push_back({group, Layout::kNn, s.tokens, s.in, s.out, a, b, wide});
    cases.push_back({group, Layout::kTn, s.out, s.in, s.tokens, a, b, Format::kFp32});
  }
}

void add_rows(std::vector<Case>& cases, const Elements& a, const Elements& b) {
  const Format wide = output_of(a);
  const std::string formats = names_of(a, b);
  for (int64_t rows : {1, 2, 4, 8, 16}) {
    for (int64_t size : {4096, 8192}) {
      cases.push_back({"rows/" + formats, Layout::kNtPacked, rows, size, size, a, b, wide});
      cases.push_back({"rows/" + formats, Layout::kNt, rows, size, size, a, b, wide});
    }
  }
}

// The products of a block of SmolLM2-135M, whose heads are 9 of queries and 3 of keys and values, and its head.
void add_team(std::vector<Case>& cases, const Elements& a, const Elements& b) {
  const std::string formats = names_of(a, b);
  constexpr int64_t kDim = 576, kProjected = 960, kInner = 1536, kVocabulary = 49152;
  for (int64_t rows : {1, 2, 4, 8}) {
    for (const auto& [n, k] : {std::pair{kProjected, kDim}, std::pair{kDim, kDim}, std::pair{2 * kInner, kDim},
                               std::pair{kDim, kInner}, std::pair{kVocabulary, kDim}}) {
      cases.push_back({"team/" + formats, Layout::kNtPacked, rows, n, k, a, b, a.format});
    }
    if (a == b) cases.push_back({"team/" + formats, Layout::kNt, rows, kVocabulary, kDim, a, b, a.format});
  }
}

void add_epilogues(std::vector<Case>& cases) {
  for (int64_t k : {384, 768}) {
    Case c = {"epilogue", Layout::kNt, 2048, 3072, k, Format::kE4m3, Format::kE4m3, Format::kBf16};
    for (Format output : {Format::kFp32, Format::kBf16, Format::kE4m3}) {
      c.output = output;
      c.group = "epilogue/" + std::string(format::info(output).name);
      cases.push_back(c);
    }
    auto add = [&](const char* name, auto change) {
      Case changed = c;
      change(changed);
      changed.group = std::string("epilogue/") + name;
      cases.push_back(changed);
    };
    add("bias_gelu_e4m3", [](Case& changed) {
      changed.bias = true;
      changed.activation = GemmActivation::kGelu;
    });
    add("dgelu_column_sum_bf16", [](Case& changed) {
      changed.output = Format::kBf16;
      changed.activation = GemmActivation::kDGelu;
      changed.column_sum = true;
    });
    add("accumulate_fp32", [](Case& changed) {
      changed.output = Format::kFp32;
      changed.accumulate = true;
    });
  }
}

const bool kRegistered = [] {
  std::vector<Case> products, rows, team;
  for (const auto& [a, b] : {std::pair{Format::kFp32, Format::kFp32}, std::pair{Format::kFp16, Format::kFp16},
                             std::pair{Format::kBf16, Format::kBf16}, std::pair{Format::kE4m3, Format::kE4m3},
                             std::pair{Format::kE5m2, Format::kE4m3}}) {
    add_products(products, a, b);
    if (b != Format::kFp16 && a != Format::kE5m2) add_rows(rows, a, b);
  }
  // Few rows are of activations in BF16.
  for (const Elements& b : {Elements(Format::kE4m3), kE4m3Blocks, kNvfp4, kMxfp4}) add_rows(rows, Format::kBf16, b);
  for (const auto& [a, b] :
       {std::pair(Elements(Format::kBf16), kE4m3Blocks), std::pair(kE4m3Blocks, kE4m3Blocks),
        std::pair(Elements(Format::kBf16), kNvfp4), std::pair(kNvfp4, kNvfp4), std::pair(kMxfp4, kMxfp4)}) {
    add_block_products(products, a, b);
  }
  for (const Format format : {Format::kFp32, Format::kBf16, Format::kFp16}) add_team(team, format, format);
  for (const Elements& b : {Elements(Format::kE4m3), kNvfp4, kMxfp4}) add_team(team, Format::kBf16, b);
  add_epilogues(products);
  for (const Case& c : products) {
    benchmark::RegisterBenchmark(c.name().c_str(), run_products, c)->UseManualTime()->MinTime(0.2);
  }
  for (const Case& c : rows) {
    benchmark::RegisterBenchmark(c.name().c_str(), run_rows<Problem>, c)->UseManualTime()->MinTime(0.2);
  }
  for (const Case& c : team) {
    benchmark::RegisterBenchmark(c.name().c_str(), run_rows<TeamProblem>, c)->UseManualTime()->MinTime(0.2);
  }
  return true;
}();

}  // namespace
}  // namespace plimsoll::kernels
