// Kernels of cross_entropy.cu against that of cross_entropy_cpu.cpp: the same codes of every number; any NaN counts as any other.
#include <limits>

#include "plimsoll/kernels/cross_entropy/cross_entropy.h"
#include "plimsoll/kernels/cross_entropy/cross_entropy_launch.h"
#include "tests/ptx/array_testing.h"

namespace plimsoll::ptx::testing::cross_entropy_ptx_test {
namespace {

using kernels::CrossEntropy;
using kernels::testing::Array;
using kernels::testing::sample;

constexpr Format kWide[] = {Format::kFp32, Format::kBf16, Format::kFp16};
constexpr int64_t kIgnored = -7;
constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();

struct Case {
  int64_t rows, vocabulary;
  float smoothing = 0.0f;
  bool class_weight = false, row_factor = false;
  int64_t gap = 0;        // elements between rows
  size_t offset = 0;      // bytes of each array from an aligned address
  float slope = 0.0f;     // of the logits along a row
  bool in_place = false;  // the gradient overwrites the logits
  bool has_grad = true;
  float grad_factor = 0.3f;

  int64_t stride() const { return vocabulary + gap; }
  int64_t count() const { return rows * stride(); }
};

// Widths around a run, 64 logits, a chunk of 1,024 and what a team holds; rows around the teams of a block.
constexpr Case kCases[] = {{.rows = 0, .vocabulary = 8},
                           {.rows = 1, .vocabulary = 1},
                           {.rows = 18, .vocabulary = 2, .smoothing = 0.1f},
                           {.rows = 3, .vocabulary = 15, .row_factor = true, .grad_factor = -2.0f},
                           {.rows = 5, .vocabulary = 63, .class_weight = true},
                           {.rows = 9, .vocabulary = 64, .smoothing = 0.25f, .in_place = true},
                           {.rows = 3, .vocabulary = 65, .class_weight = true, .row_factor = true, .gap = 3},
                           {.rows = 2, .vocabulary = 127, .has_grad = false},
                           {.rows = 2, .vocabulary = 1023, .gap = 1, .in_place = true},
                           {.rows = 3, .vocabulary = 1024, .smoothing = 0.1f, .gap = 8},
                           {.rows = 2, .vocabulary = 1025, .offset = 4},
                           {.rows = 2, .vocabulary = 2048, .offset = 4, .in_place = true},
                           {.rows = 3, .vocabulary = 3000, .smoothing = 0.2f, .row_factor = true, .slope = 0.01f},
                           {.rows = 2, .vocabulary = 5003, .smoothing = 0.1f, .slope = -0.01f, .has_grad = false},
                           {.rows = 1, .vocabulary = 9001, .slope = 0.003f},
                           {.rows = 1, .vocabulary = 16900, .smoothing = 0.1f, .slope = 0.003f, .in_place = true}};

std::string describe(const Case& c, Format format) {
  return name_of(format) + " " + std::to_string(c.rows) + " x " + std::to_string(c.vocabulary) +
         (c.in_place ? " in place" : "") + " smoothing " + std::to_string(c.smoothing);
}

// Row 1 is ignored, the others have their targets spread over the vocabulary.
std::vector<int64_t> targets_of(const Case& c) {
  std::vector<int64_t> targets;
  for (int64_t row = 0; row < c.rows; ++row) {
    targets.push_back(row == 1 ? kIgnored : (row * 7919 + c.vocabulary - 1) % c.vocabulary);
  }
  return targets;
}

Array logits_of(const Case& c, Format format) {
  std::vector<float> values = sample(c.count(), 1, 0.5f, 3.0f);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] += c.slope * static_cast<float>(static_cast<int64_t>(i) % c.stride());
  }
  return Array(format, values);
}

// Results of the CPU's kernel and of the device's for the same arguments.
struct Both {
  Array loss, grad;
  Memory memory;
  uint64_t device_loss = 0, device_grad = 0;

  Both(const Case& c, Format format) : loss(Format::kFp32, c.rows), grad(format, c.count()) {}
};

// targets: of the device; the CPU ignores those that are out of the vocabulary.
Both run(const Module& module, Format format, const Case& c, const Array& logits, const std::vector<int64_t>& targets) {
  Both both(c, format);
  std::vector<int64_t> known = targets;
  for (int64_t& target : known) target = target < 0 || target >= c.vocabulary ? kIgnored : target;
  const Array weight(Format::kFp32, sample(c.vocabulary, 3, 1.0f, 0.2f)),
      factor(Format::kFp32, sample(c.rows, 4, 1.0f, 0.2f));
  if (c.in_place) both.grad = logits;
  CrossEntropy args{.rows = c.rows,
                    .vocabulary = c.vocabulary,
                    .logits = c.in_place ? both.grad.data() : logits.data(),
                    .logits_stride = c.stride(),
                    .format = format,
                    .targets = known.data(),
                    .ignore_index = kIgnored,
                    .label_smoothing = c.smoothing,
                    .class_weight = c.class_weight ? static_cast<const float*>(weight.data()) : nullptr,
                    .loss = both.loss.floats(),
                    .grad = c.has_grad ? both.grad.data() : nullptr,
                    .grad_stride = c.stride(),
                    .grad_factor = c.grad_factor,
                    .row_factor = c.row_factor ? static_cast<const float*>(factor.data()) : nullptr};
  kernels::cross_entropy(args);

  Memory& memory = both.memory;
  const auto bytes = static_cast<size_t>(c.count() * format::bytes(format));
  const uint64_t x = memory.add("logits", logits.data(), bytes, c.offset, /*read_only=*/!c.in_place);
  args.logits = pointer<void>(x);
  args.targets = pointer<int64_t>(memory.add("targets", targets.data(), targets.size() * sizeof(int64_t)));
  if (c.class_weight) args.class_weight = pointer<float>(add(memory, "class_weight", weight, Format::kFp32));
  if (c.row_factor) args.row_factor = pointer<float>(add(memory, "row_factor", factor, Format::kFp32));
  both.device_loss = add_unwritten(memory, "loss", c.rows, Format::kFp32);
  args.loss = pointer<float>(both.device_loss);
  if (c.has_grad) both.device_grad = c.in_place ? x : memory.add_unwritten("grad", bytes, c.offset);
  args.grad = pointer<void>(both.device_grad);
  launch(module.kernel("cross_entropy_" + name_of(format)), memory,
         kernels::cross_entropy_launch(args, kMultiprocessors), args);
  return both;
}

void expect_same(Both& both, Format format, const Case& c) {
  const std::string where = describe(c, format);
  testing::expect_same({1, c.rows, c.rows, Format::kFp32}, both.memory.data(both.device_loss), both.loss.data(),
                       /*exact=*/false, where + ": loss");
  if (!c.has_grad) return;
  testing::expect_same({c.rows, c.vocabulary, c.stride(), format}, both.memory.data(both.device_grad), both.grad.data(),
                       /*exact=*/false, where + ": gradient");
}

void check(const Module& module, Format format, const Case& c, const Array& logits,
           const std::vector<int64_t>& targets) {
  Both both = run(module, format, c, logits, targets);
  expect_same(both, format, c);
}
void check(const Module& module, Format format, const Case& c) {
  check(module, format, c, logits_of(c, format), targets_of(c));
}

TEST(PtxCrossEntropy, HasTheBytesOfTheCpuKernel) {
  PLIMSOLL_MODULE("cross_entropy");
  for (const Format format : kWide) {
    for (const Case& c : kCases) {
      check(module, format, c);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(PtxCrossEntropy, HasTheBytesOfTheCpuKernelOnALargeVocabulary) {
  PLIMSOLL_MODULE("cross_entropy");
  check(module, Format::kBf16, {.rows = 1, .vocabulary = 131077, .slope = 1e-4f, .in_place = true});
  check(module, Format::kFp32, {.rows = 1, .vocabulary = 50257, .smoothing = 0.1f, .slope = -1e-3f});
}

TEST(PtxCrossEntropy, HasTheBytesOfTheCpuKernelOnManyRows) {
  PLIMSOLL_MODULE("cross_entropy");
  check(module, Format::kBf16, {.rows = 300, .vocabulary = 256, .class_weight = true, .row_factor = true});
  check(module, Format::kFp16, {.rows = 30, .vocabulary = 1500, .smoothing = 0.1f, .in_place = true});
}

// A row of each kind beside one of finite logits.
TEST(PtxCrossEntropy, ShowsWhatIsNotFinite) {
  PLIMSOLL_MODULE("cross_entropy");
  for (const Format format : kWide) {
    for (const float worst : {kInf, -kInf, kNan, 1e4f}) {
      for (const int64_t place : {0, 1030, 2004}) {
        for (const float smoothing : {0.0f, 0.1f}) {
          const Case c{.rows = 3, .vocabulary = 2005, .smoothing = smoothing};
          Array logits = logits_of(c, format);
          logits.set(2 * c.vocabulary + place, worst);
          check(module, format, c, logits, {c.vocabulary - 1, place, place});
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(PtxCrossEntropy, MinusInfinityHasNoProbability) {
  PLIMSOLL_MODULE("cross_entropy");
  for (const Format format : kWide) {
    // Nothing but -Inf, nothing else in the first chunk, and -Inf as the target.
    const Case c{.rows = 4, .vocabulary = 3000};
    Array logits(format, std::vector<float>(static_cast<size_t>(c.count()), -kInf));
    for (const int64_t row : {1, 2, 3}) {
      for (const int64_t i : {1100, 2999}) logits.set(row * c.vocabulary + i, -200.0f);
    }
    check(module, format, c, logits, {5, 2999, 1100, 7});
  }
}

// Such a target is an error on the CPU; on a device nobody reads beside the vocabulary, and the row is seen to be wrong.
TEST(PtxCrossEntropy, ATargetOutOfTheVocabularyMakesItsRowNan) {
  PLIMSOLL_MODULE("cross_entropy");
  for (const Format format : kWide) {
    for (const int64_t vocabulary : {40, 5000}) {
      const Case c{.rows = 6, .vocabulary = vocabulary, .class_weight = true, .row_factor = true, .gap = 1};
      const std::vector<int64_t> targets = {3, -1, kIgnored, vocabulary, 7, std::numeric_limits<int64_t>::min()};
      Both both = run(module, format, c, logits_of(c, format), targets);
      for (const int64_t row : {1, 3, 5}) {
        both.loss.set(row, kNan);
        for (int64_t i = 0; i < vocabulary; ++i) both.grad.set(row * c.stride() + i, kNan);
      }
      expect_same(both, format, c);
      if (HasFatalFailure()) return;
    }
  }
}

}  // namespace
}  // namespace plimsoll::ptx::testing::cross_entropy_ptx_test
