#include "plimsoll/kernels/attention/attention.h"

#include <gtest/gtest.h>

#include <limits>

#include "plimsoll/kernels/attention/attention_test_support.h"

namespace plimsoll::kernels {
namespace {

using namespace testing;

constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();

void expect_within(const Array& got, const ExactTensor& exact, const char* what) {
  std::string fault;
  EXPECT_TRUE(within(got, exact, &fault)) << what << ", " << fault;
  EXPECT_TRUE(got.guards_intact()) << what;
}

void expect_exact(const AttentionCase& c) {
  const AttentionProblem problem(c);
  const ExactAttention plain = exact_attention(problem, false);
  on_every_isa([&] {
    SCOPED_TRACE(describe(c));
    const ExactAttention of_pairs = multiplies_pairs(c) ? exact_attention(problem, true) : ExactAttention{};
    const ExactAttention& exact = multiplies_pairs(c) ? of_pairs : plain;
    AttentionResult result(c);
    run_forward(problem, result);
    expect_within(result.output.array, exact.output, "output");
    expect_within(result.lse, exact.lse, "lse");
    if (c.codes) return;
    run_backward(problem, result);
    expect_within(result.grad_q.array, exact.grad_q, "grad_q");
    expect_within(result.grad_k.array, exact.grad_k, "grad_k");
    expect_within(result.grad_v.array, exact.grad_v, "grad_v");
    expect_within(result.grad_bias, exact.grad_bias, "grad_bias");
  });
}

TEST(Attention, EveryShapeIsWithinTheBoundOfDouble) {
  for (const AttentionShape& shape : {shape_of(1, 1, 1), shape_of(3, 5, 7), shape_of(8, 70, 33), shape_of(9, 16, 16),
                                      shape_of(31, 31, 15), shape_of(32, 64, 17), shape_of(33, 65, 48),
                                      shape_of(65, 129, 32), shape_of(70, 40, 80), shape_of(150, 260, 64)}) {
    for (Format format : {Format::kFp32, Format::kBf16, Format::kFp16}) {
      for (const Causal causal : {Causal::kNone, Causal::kTopLeft, Causal::kBottomRight})
        expect_exact({.shape = shape, .format = format, .causal = causal});
    }
  }
}

TEST(Attention, ValuesMayHaveOtherChannelsThanKeys) {
  for (Format format : {Format::kFp32, Format::kBf16}) {
    AttentionShape shape = shape_of(40, 50, 24);
    shape.value_channels = 41;
    expect_exact({.shape = shape, .format = format});
  }
}

TEST(Attention, PanelsOfKeysAddUp) {
  // At 256 channels a panel is 320 keys forward, 128 backward.
  for (Format format : {Format::kFp32, Format::kBf16}) {
    expect_exact({.shape = shape_of(140, 400, 256), .format = format, .causal = Causal::kBottomRight});
    expect_exact({.shape = shape_of(70, 400, 250), .format = format});
  }
}

TEST(Attention, EveryRuleIsWithinTheBoundOfDouble) {
  for (Format format : {Format::kFp32, Format::kBf16, Format::kFp16}) {
    for (int64_t queries : {5, 37, 70}) {
      AttentionCase c = {.format = format};
      c.shape.queries = queries;
      c.shape.keys = queries + 40;
      for (const Causal causal : {Causal::kNone, Causal::kTopLeft, Causal::kBottomRight}) {
        c.causal = causal;
        AttentionCase lengths = c;
        lengths.key_lengths = true;
        expect_exact(lengths);
        for (Extent extent : {Extent::kFull, Extent::kOverBatch, Extent::kOverHeadsAndQueries}) {
          AttentionCase masked = c;
          masked.mask = extent;
          expect_exact(masked);
          AttentionCase biased = c;
          biased.bias = extent;
          biased.bias_format = extent == Extent::kFull ? format : Format::kFp32;
          expect_exact(biased);
        }
        AttentionCase dropped = c;
        dropped.dropout = 0.3f;
        expect_exact(dropped);
      }
      AttentionCase all = c;
      all.key_lengths = true;
      all.mask = Extent::kFull;
      all.bias = Extent::kOverBatch;
      all.dropout = 0.2f;
      expect_exact(all);
    }
  }
}

TEST(Attention, EveryWindowIsWithinTheBoundOfDouble) {
  for (Format format : {Format::kFp32, Format::kBf16, Format::kFp16}) {
    for (int64_t window : {1, 16, 50, 129}) {
      for (int64_t queries : {1, 7, 37, 150}) {
        for (const Causal causal : {Causal::kTopLeft, Causal::kBottomRight}) {
          AttentionCase c = {.shape = shape_of(queries, queries + 60, 24), .format = format, .causal = causal};
          c.window = window;
          expect_exact(c);
          c.key_lengths = true;
          expect_exact(c);
        }
      }
    }
    for (int64_t queries : {5, 100}) {
      AttentionCase all = {.format = format, .causal = Causal::kBottomRight, .window = 30, .key_lengths = true};
      all.shape.queries = queries;
      all.shape.keys = 170;
      AttentionCase codes = all;
      codes.codes = true;
      expect_exact(codes);
      all.mask = Extent::kFull;
      all.bias = Extent::kOverBatch;
      expect_exact(all);
      all.dropout = 0.2f;
      expect_exact(all);
    }
  }
}

TEST(Attention, WindowsSpanPanelsOfKeys) {
  // At 256 channels a panel is 320 keys forward, 128 backward.
  for (Format format : {Format::kFp32, Format::kBf16}) {
    for (int64_t window : {20, 200}) {
      expect_exact(
          {.shape = shape_of(70, 400, 256), .format = format, .causal = Causal::kBottomRight, .window = window});
    }
  }
}

TEST(Attention, ReadsCachesOfCodes) {
  for (Format format : {Format::kFp32, Format::kBf16}) {
    for (int64_t queries : {1, 3, 20}) {
      AttentionCase c = {.format = format, .causal = Causal::kBottomRight, .key_lengths = true, .codes = true};
      c.shape.queries = queries;
      c.shape.keys = 90;
      expect_exact(c);
    }
  }
}

TEST(Attention, SpreadScoresStayWithinTheBound) {
  for (Format format : {Format::kFp32, Format::kBf16}) {
    expect_exact({.shape = shape_of(40, 300, 64), .format = format, .causal = Causal::kBottomRight, .deviation = 6.0f});
  }
}

TEST(Attention, TheBoundsFailOnWrongAnswers) {
  const runtime::ScopedIsa fp32_products(isas_present().back());
  const AttentionCase c = {.format = Format::kBf16, .causal = Causal::kBottomRight};
  const AttentionProblem problem(c);
  const ExactAttention exact = exact_attention(problem, false);
  AttentionResult result(c);
  run_forward(problem, result);
  run_backward(problem, result);
  for (HeadsArray* tensor : {&result.output, &result.grad_q, &result.grad_k, &result.grad_v}) {
    const ExactTensor& right = tensor == &result.output   ? exact.output
                               : tensor == &result.grad_q ? exact.grad_q
                               : tensor == &result.grad_k ? exact.grad_k
                                                          : exact.grad_v;
    ASSERT_TRUE(within(tensor->array, right));
    int64_t largest = 0;
    for (int64_t i = 0; i < tensor->array.count(); ++i) {
      const auto magnitude = [&](int64_t at) { return std::abs(right.value[static_cast<size_t>(at)]); };
      if (std::isnan(magnitude(largest)) || magnitude(i) > magnitude(largest)) largest = i;
    }
    const float value = tensor->array.at(largest);
    for (float wrong : {value * 1.05f, value * 100, -value, kNan, kInf}) {
      tensor->array.set(largest, wrong);
      EXPECT_FALSE(within(tensor->array, right)) << wrong;
    }
  }
}

TEST(Attention, AQueryWithoutKeysGivesZeroAndTakesNoGradient) {
  for (int64_t queries : {6, 20}) {
    AttentionCase c = {.shape = shape_of(queries, 4, 16),
                       .causal = Causal::kBottomRight};  // the first queries see nothing
    const AttentionProblem problem(c);
    on_every_isa([&] {
      AttentionResult result(c);
      run_forward(problem, result);
      run_backward(problem, result);
      for (int64_t i = 0; i < queries - 4; ++i) {
        EXPECT_EQ(result.lse.at(i), -kInf);
        for (int64_t channel = 0; channel < 16; ++channel) {
          EXPECT_EQ(result.output.at(0, 0, i, channel), 0.0);
          EXPECT_EQ(result.grad_q.at(0, 0, i, channel), 0.0);
        }
      }
    });
  }
}

TEST(Attention, GradientsAreWrittenTimesTheirFactors) {
  const AttentionCase c = {.causal = Causal::kBottomRight, .dropout = 0.2f};
  const AttentionProblem problem(c);
  on_every_isa([&] {
    AttentionResult plain(c), larger(c);
    run_forward(problem, plain);
    run_forward(problem, larger);
    run_backward(problem, plain);
    run_backward(problem, larger, {.q = 16.0f, .k = 0.25f, .v = 2.0f});
    const auto expect_times = [](const Array& got, const Array& from, float factor) {
      for (int64_t i = 0; i < got.count(); ++i) {
        const bool gap = std::isnan(from.at(i));
        EXPECT_TRUE(gap || got.at(i) == from.at(i) * factor) << i;
      }
    };
    expect_times(larger.grad_q.array, plain.grad_q.array, 16.0f);
    expect_times(larger.grad_k.array, plain.grad_k.array, 0.25f);
    expect_times(larger.grad_v.array, plain.grad_v.array, 2.0f);
  });
}

TEST(Attention, NothingToDoIsDone) {
  for (const AttentionShape& shape : {shape_of(0, 5, 8), shape_of(20, 0, 8), shape_of(3, 0, 8), shape_of(5, 5, 0)}) {
    const AttentionCase c = {.shape = shape};
    const AttentionProblem problem(c);
    AttentionResult result(c);
    run_forward(problem, result);
    run_backward(problem, result);
    const ExactAttention exact = exact_attention(problem, false);
    EXPECT_TRUE(within(result.output.array, exact.output));
    EXPECT_TRUE(within(result.grad_q.array, exact.grad_q));
    for (int64_t channel = 0; shape.queries == 0 && channel < 8; ++channel)
      EXPECT_EQ(result.grad_k.at(0, 0, 4, channel), 0.0);
  }
}

}  // namespace
}  // namespace plimsoll::kernels
