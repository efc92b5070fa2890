#include "plimsoll/kernels/attention/attention.h"

#include <gtest/gtest.h>

#include <limits>

#include "plimsoll/kernels/attention/attention_test_support.h"

namespace plimsoll::kernels {
namespace {

using namespace testing;

constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();

template <class Check>
void on_every_isa(Check check) {
  for (runtime::Isa isa : attention_isas()) {
    const runtime::ScopedIsa scope(isa);
    SCOPED_TRACE(std::string(runtime::name(isa)));
    check();
  }
}

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

AttentionShape shape_of(int64_t queries, int64_t keys, int64_t channels) {
  return {.batch = 1,
          .heads = 2,
          .groups = 1,
          .queries = queries,
          .keys = keys,
          .channels = channels,
          .value_channels = channels};
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

TEST(Attention, KeysBeyondTheLengthAreNotRead) {
  for (int64_t queries : {3, 20}) {
    AttentionCase c = {.key_lengths = true};
    c.shape.queries = queries;
    AttentionProblem problem(c);
    on_every_isa([&] {
      AttentionResult clean(c), poisoned(c);
      run_forward(problem, clean);
      run_backward(problem, clean);
      AttentionProblem with_nan = problem;
      for (int64_t key = problem.lengths[0]; key < c.shape.keys; ++key) {
        with_nan.k.array.set(with_nan.k.index(0, 1, key, 2), kNan);
        with_nan.v.array.set(with_nan.v.index(0, 1, key, 2), kNan);
      }
      run_forward(with_nan, poisoned);
      run_backward(with_nan, poisoned);
      EXPECT_TRUE(same(clean.output.array, poisoned.output.array));
      EXPECT_TRUE(same(clean.grad_q.array, poisoned.grad_q.array));
      EXPECT_TRUE(same(clean.grad_k.array, poisoned.grad_k.array));
      EXPECT_EQ(poisoned.grad_k.at(0, 1, problem.lengths[0], 0), 0.0);
    });
  }
}

TEST(Attention, KeysBeforeTheWindowAreNotRead) {
  for (Format format : {Format::kFp32, Format::kBf16}) {
    for (int64_t queries : {3, 20, 200}) {
      AttentionCase c = {.format = format, .causal = Causal::kBottomRight, .window = 30};
      c.shape.queries = queries;
      c.shape.keys = 300;
      const AttentionProblem problem(c);
      AttentionProblem with_nan = problem;
      for (int64_t key = 0; key <= c.shape.keys - queries - c.window; ++key) {
        with_nan.k.array.set(with_nan.k.index(0, 1, key, 2), kNan);
        with_nan.v.array.set(with_nan.v.index(0, 1, key, 2), kNan);
      }
      on_every_isa([&] {
        AttentionResult clean(c), poisoned(c);
        run_forward(problem, clean);
        run_backward(problem, clean);
        run_forward(with_nan, poisoned);
        run_backward(with_nan, poisoned);
        EXPECT_TRUE(same(clean.output.array, poisoned.output.array));
        EXPECT_TRUE(same(clean.grad_q.array, poisoned.grad_q.array));
        EXPECT_TRUE(same(clean.grad_k.array, poisoned.grad_k.array));
        EXPECT_TRUE(same(clean.grad_v.array, poisoned.grad_v.array));
        EXPECT_EQ(poisoned.grad_k.at(0, 1, 0, 0), 0.0);
      });
    }
  }
}

TEST(Attention, NonFiniteValuesPropagate) {
  for (int64_t queries : {4, 40}) {
    AttentionCase c = {.shape = shape_of(queries, 50, 16)};
    for (float poison : {kNan, kInf}) {
      on_every_isa([&] {
        AttentionProblem problem(c);
        problem.q.array.set(problem.q.index(0, 1, 2, 3), kNan);
        problem.v.array.set(problem.v.index(0, 0, 49, 5), poison);
        AttentionResult result(c);
        run_forward(problem, result);
        run_backward(problem, result);
        for (int64_t channel = 0; channel < 16; ++channel) EXPECT_TRUE(std::isnan(result.output.at(0, 1, 2, channel)));
        for (int64_t i = 0; i < queries; ++i) {
          EXPECT_FALSE(std::isfinite(result.output.at(0, 0, i, 5)));
          EXPECT_TRUE(std::isfinite(result.output.at(0, 0, i, 4)));
        }
        EXPECT_TRUE(std::isnan(result.grad_q.at(0, 1, 2, 0)));
        EXPECT_TRUE(std::isnan(result.grad_k.at(0, 0, 7, 0)));
      });
    }
  }
}

TEST(Attention, ANanAmongCodesReachesItsChannelAndNoOther) {
  for (int64_t queries : {1, 7}) {
    const AttentionCase c = {.shape = shape_of(queries, 150, 48), .codes = true};
    const AttentionProblem problem(c);
    AttentionProblem bad = problem;
    bad.v.array.set(bad.v.index(0, 0, 70, 5), kNan);
    on_every_isa([&] {
      AttentionResult clean(c), result(c);
      run_forward(problem, clean);
      run_forward(bad, result);
      for (int64_t i = 0; i < queries; ++i) {
        for (int64_t channel = 0; channel < 48; ++channel) {
          if (channel == 5) {
            EXPECT_TRUE(std::isnan(result.output.at(0, 0, i, channel)));
          } else {
            EXPECT_EQ(result.output.at(0, 0, i, channel), clean.output.at(0, 0, i, channel));
          }
        }
      }
    });
  }
}

// Bits of the rows first <= row < end of every batch and head.
bool same_rows(const HeadsArray& a, const HeadsArray& b, const AttentionShape& s, int64_t heads, int64_t first,
               int64_t end) {
  for (int64_t i = 0; i < s.batch * heads; ++i) {
    for (int64_t row = first; row < end; ++row) {
      for (int64_t channel = 0; channel < s.channels; ++channel) {
        if (!(a.at(i / heads, i % heads, row, channel) == b.at(i / heads, i % heads, row, channel))) return false;
      }
    }
  }
  return true;
}

TEST(Attention, WhatAMaskHidesReachesNothing) {
  for (Format format : {Format::kFp32, Format::kBf16}) {
    for (int64_t queries : {4, 40, 150}) {
      for (float dropout : {0.0f, 0.25f}) {
        AttentionCase c = {.format = format, .mask = Extent::kOverHeadsAndQueries, .dropout = dropout};
        c.shape.queries = queries;
        const AttentionProblem problem(c);
        AttentionProblem poisoned = problem;
        const AttentionShape& s = c.shape;
        for (int64_t i = 0; i < s.batch * s.keys; ++i) {
          if (problem.mask[static_cast<size_t>(i)] == 0) continue;
          poisoned.k.array.set(poisoned.k.index(i / s.keys, 1, i % s.keys, 3), kNan);
          poisoned.v.array.set(poisoned.v.index(i / s.keys, 1, i % s.keys, 5), i % 2 == 0 ? kNan : kInf);
        }
        on_every_isa([&] {
          SCOPED_TRACE(describe(c));
          AttentionResult clean(c), result(c);
          run_forward(problem, clean);
          run_backward(problem, clean);
          run_forward(poisoned, result);
          run_backward(poisoned, result);
          EXPECT_TRUE(same(result.output.array, clean.output.array));
          EXPECT_TRUE(same(result.grad_q.array, clean.grad_q.array));
          EXPECT_TRUE(same(result.grad_k.array, clean.grad_k.array));
          EXPECT_TRUE(same(result.grad_v.array, clean.grad_v.array));
        });
      }
    }
  }
}

TEST(Attention, WhatTheCausalRuleHidesReachesNothing) {
  for (Format format : {Format::kFp32, Format::kBf16}) {
    for (int64_t length : {8, 90}) {
      const AttentionCase c = {.shape = shape_of(length, length, 48), .format = format, .causal = Causal::kBottomRight};
      const int64_t place = length - 3;
      const AttentionProblem problem(c);
      AttentionProblem bad_value = problem, bad_gradient = problem;
      bad_value.v.array.set(bad_value.v.index(0, 0, place, 7), kInf);
      bad_gradient.grad.array.set(bad_gradient.grad.index(0, 1, place, 7), kNan);
      on_every_isa([&] {
        SCOPED_TRACE(describe(c));
        AttentionResult clean(c), result(c);
        run_forward(problem, clean);
        run_backward(problem, clean);
        run_forward(bad_value, result);
        EXPECT_TRUE(same_rows(result.output, clean.output, c.shape, 2, 0, place));
        EXPECT_FALSE(std::isfinite(result.output.at(0, 1, place, 7)));
        run_forward(problem, result);
        run_backward(bad_gradient, result);
        EXPECT_TRUE(same_rows(result.grad_v, clean.grad_v, c.shape, 1, place + 1, length));
        EXPECT_TRUE(same_rows(result.grad_k, clean.grad_k, c.shape, 1, place + 1, length));
        EXPECT_TRUE(std::isnan(result.grad_v.at(0, 0, place, 7)));
        EXPECT_TRUE(std::isnan(result.grad_k.at(0, 0, place, 0)));
      });
    }
  }
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
