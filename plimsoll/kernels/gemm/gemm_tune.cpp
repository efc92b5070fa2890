// `make tune`: finds the sizes of a product's blocks for this processor, and says what they gain.
// For each kind of microkernel that it has, products of training are timed with one size and the other in turn, so that a
// machine that others use, too, favours neither. Sizes that looked better in a few turns are timed again in many; one is taken
// where it gained more than kLeastGain, and something in three quarters of the turns. Prints the row of gemm_tiling.cpp.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "plimsoll/format/codec.h"
#include "plimsoll/kernels/gemm/gemm.h"
#include "plimsoll/kernels/gemm/gemm_tiling.h"
#include "plimsoll/runtime/cpu.h"
#include "plimsoll/runtime/threads.h"

namespace plimsoll::kernels {
namespace {

using format::Format;
using Clock = std::chrono::steady_clock;

constexpr double kLeastGain = 1.01;
constexpr int kFewTurns = 7, kManyTurns = 31;
constexpr size_t kTimedAgain = 2;
constexpr double kSecondsOfATurn = 0.02;

// x [m, k] w [n, k]^T, or a transposed product of tokens, as the gradient of a weight is.
struct Shape {
  int64_t m, n, k;
  bool transposed = false;
};
constexpr Shape kShapes[] = {{2048, 576, 576},  {2048, 1536, 576},      {2048, 576, 1536},       {1024, 2304, 768},
                             {1024, 768, 3072}, {576, 576, 2048, true}, {3072, 768, 1024, true}, {1024, 1024, 1024}};

struct Kind {
  const char* name;
  Format format;  // of both operands
  GemmTiling GemmTilings::*tiling;
};

class Operand {
 public:
  Operand(Format format, int64_t count)
      : size_(format::bytes(format)),
        data_(static_cast<char*>(std::aligned_alloc(64, static_cast<size_t>((count * size_ + 63) / 64 * 64)))) {
    uint32_t random = 1;
    for (int64_t i = 0; i < count; ++i) {
      random = random * 1664525u + 1013904223u;
      const uint32_t code = format::encode(format, static_cast<float>(random >> 8) * 0x1p-23f - 1.0f);
      __builtin_memcpy(data_.get() + i * size_, &code, static_cast<size_t>(size_));
    }
  }
  char* data() const { return data_.get(); }

 private:
  struct Free {
    void operator()(char* p) const { std::free(p); }
  };
  int64_t size_;
  std::unique_ptr<char[], Free> data_;
};

class Problem {
 public:
  Problem(Format format, const Shape& shape)
      : a_(format, shape.m * shape.k), b_(format, shape.n * shape.k), output_(Format::kFp32, shape.m * shape.n) {
    const auto operand = [&](const Operand& x, int64_t rows) {
      return GemmOperand{.data = x.data(),
                         .format = format,
                         .row_stride = shape.transposed ? 1 : shape.k,
                         .k_stride = shape.transposed ? rows : 1};
    };
    gemm_ = {.a = operand(a_, shape.m),
             .b = operand(b_, shape.n),
             .m = shape.m,
             .n = shape.n,
             .k = shape.k,
             .output = output_.data(),
             .output_format = Format::kFp32,
             .output_stride = shape.n};
    const double once = seconds(1);
    products_ = std::max(1, static_cast<int>(kSecondsOfATurn / once));
  }
  double seconds() const { return seconds(products_); }

 private:
  double seconds(int count) const {
    const auto start = Clock::now();
    for (int i = 0; i < count; ++i) gemm(gemm_);
    return std::chrono::duration<double>(Clock::now() - start).count();
  }

  Operand a_, b_, output_;
  Gemm gemm_;
  int products_ = 1;
};

// Times as fast that `other` is: the quartiles of the turns, each the geometric mean over all products.
struct Gain {
  double lower = 0, median = 0, upper = 0;
};

Gain gain_of(const std::vector<std::unique_ptr<Problem>>& problems, const GemmTilings& present,
             const GemmTilings& other, int turns) {
  std::vector<double> gains;
  for (int turn = 0; turn < turns; ++turn) {
    double logarithms = 0;
    for (const auto& problem : problems) {
      double of_present = 0, of_other = 0;
      const auto time = [&](const GemmTilings& tilings, double& to) {
        const ScopedGemmTilings scope(tilings);
        to = problem->seconds();
      };
      if (turn % 2 == 0) {
        time(present, of_present);
        time(other, of_other);
      } else {
        time(other, of_other);
        time(present, of_present);
      }
      logarithms += std::log(of_present / of_other);
    }
    gains.push_back(std::exp(logarithms / static_cast<double>(problems.size())));
  }
  std::sort(gains.begin(), gains.end());
  return {gains[gains.size() / 4], gains[gains.size() / 2], gains[gains.size() * 3 / 4]};
}

std::string text_of(const GemmTiling& tiling) { return fmt::format("{{{}, {}}}", tiling.k_block, tiling.a_kib); }

Gain show_gain(const Kind& kind, const std::vector<std::unique_ptr<Problem>>& problems, const GemmTilings& present,
               const GemmTilings& other, int turns) {
  const Gain gain = gain_of(problems, present, other, turns);
  fmt::print("{} {} -> {}: {:.3f} times as fast ({:.3f} to {:.3f}) in {} turns\n", kind.name,
             text_of(present.*kind.tiling), text_of(other.*kind.tiling), gain.median, gain.lower, gain.upper, turns);
  std::fflush(stdout);
  return gain;
}

// `present`, or the best of what `with` makes of it and each candidate.
template <class With>
GemmTilings improved(const Kind& kind, const std::vector<std::unique_ptr<Problem>>& problems,
                     const GemmTilings& present, std::initializer_list<int64_t> candidates, const With& with) {
  std::vector<std::pair<double, GemmTilings>> looked_better;
  for (const int64_t candidate : candidates) {
    GemmTilings tilings = present;
    tilings.*kind.tiling = with(present.*kind.tiling, candidate);
    if (tilings == present) continue;
    const double gain = show_gain(kind, problems, present, tilings, kFewTurns).median;
    if (gain > kLeastGain) looked_better.emplace_back(gain, tilings);
  }
  std::sort(looked_better.begin(), looked_better.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  looked_better.resize(std::min(looked_better.size(), kTimedAgain));
  GemmTilings best = present;
  double most = kLeastGain;
  for (const auto& [unused, tilings] : looked_better) {
    const Gain gain = show_gain(kind, problems, present, tilings, kManyTurns);
    if (gain.lower <= 1 || gain.median <= most) continue;
    most = gain.median;
    best = tilings;
  }
  return best;
}

GemmTilings tuned(const Kind& kind, const GemmTilings& present) {
  std::vector<std::unique_ptr<Problem>> problems;
  for (const Shape& shape : kShapes) problems.push_back(std::make_unique<Problem>(kind.format, shape));
  const GemmTilings k_block = improved(kind, problems, present, {256, 384, 640, 768, 1024, 1536, 2048},
                                       [](const GemmTiling& tiling, int64_t longest) {
                                         return GemmTiling{longest, tiling.a_kib};
                                       });
  const GemmTilings result = improved(kind, problems, k_block, {64, 128, 192, 256, 384, 512, 768, 1024},
                                      [](const GemmTiling& tiling, int64_t kib) {
                                        return GemmTiling{tiling.k_block, kib};
                                      });
  if (result == present) {
    fmt::print("{}: {} stays\n", kind.name, text_of(result.*kind.tiling));
  } else {
    fmt::print("{}: {} in place of {}\n", kind.name, text_of(result.*kind.tiling), text_of(present.*kind.tiling));
  }
  return result;
}

int run() {
  const runtime::Processor here = runtime::processor();
  fmt::print("{}, {}, {} threads\n", runtime::cpu_name(), runtime::name(runtime::isa()), runtime::threads());
  GemmTilings best = gemm_tilings();
  std::vector<Kind> kinds = {{"fp32", Format::kFp32, &GemmTilings::fp32}};
  if (runtime::matmul_isa() == runtime::Isa::kAvx512Bf16)
    kinds.push_back({"pairs", Format::kBf16, &GemmTilings::pairs});
  if (runtime::matmul_isa() == runtime::Isa::kAmx) {
    kinds.push_back({"tiles", Format::kBf16, &GemmTilings::tiles});
    kinds.push_back({"split", Format::kFp16, &GemmTilings::split});
  }
  for (const Kind& kind : kinds) best = tuned(kind, best);
  fmt::print("\nThe row of plimsoll/kernels/gemm/gemm_tiling.cpp, for the models that you know to be of one design:\n");
  constexpr const char* kVendors[] = {"kOther", "kIntel", "kAmd"};
  const std::string name = fmt::format("{{Processor::Vendor::{}, {}, {}}}", kVendors[static_cast<int>(here.vendor)],
                                       here.family, here.model);
  fmt::print("    {{{}, {}, {{{}, {}, {}, {}}}}},\n", name, name, text_of(best.fp32), text_of(best.pairs),
             text_of(best.tiles), text_of(best.split));
  return 0;
}

}  // namespace
}  // namespace plimsoll::kernels

int main() { return plimsoll::kernels::run(); }
