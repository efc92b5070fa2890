// Reach of keys and values into outputs and gradients: those that no query sees, and those that are not finite.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "plimsoll/kernels/attention/attention_test_support.h"

namespace plimsoll::kernels::attention_reach_test {
namespace {

using namespace testing;

constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();

void run(const AttentionProblem& problem, AttentionResult& result) {
  run_forward(problem, result);
  run_backward(problem, result);
}

void expect_same(const AttentionResult& result, const AttentionResult& clean) {
  EXPECT_TRUE(same(result.output.array, clean.output.array));
  EXPECT_TRUE(same(result.grad_q.array, clean.grad_q.array));
  EXPECT_TRUE(same(result.grad_k.array, clean.grad_k.array));
  EXPECT_TRUE(same(result.grad_v.array, clean.grad_v.array));
}

TEST(AttentionReach, KeysBeyondTheLengthAreNotRead) {
  for (int64_t queries : {3, 20}) {
    AttentionCase c = {.key_lengths = true};
    c.shape.queries = queries;
    AttentionProblem problem(c);
    on_every_isa([&] {
      AttentionResult clean(c), poisoned(c);
      run(problem, clean);
      AttentionProblem with_nan = problem;
      for (int64_t key = problem.lengths[0]; key < c.shape.keys; ++key) {
        with_nan.k.array.set(with_nan.k.index(0, 1, key, 2), kNan);
        with_nan.v.array.set(with_nan.v.index(0, 1, key, 2), kNan);
      }
      run(with_nan, poisoned);
      expect_same(poisoned, clean);
      EXPECT_EQ(poisoned.grad_k.at(0, 1, problem.lengths[0], 0), 0.0);
    });
  }
}

TEST(AttentionReach, KeysBeforeTheWindowAreNotRead) {
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
        run(problem, clean);
        run(with_nan, poisoned);
        expect_same(poisoned, clean);
        EXPECT_EQ(poisoned.grad_k.at(0, 1, 0, 0), 0.0);
      });
    }
  }
}

TEST(AttentionReach, NonFiniteValuesPropagate) {
  for (int64_t queries : {4, 40}) {
    AttentionCase c = {.shape = shape_of(queries, 50, 16)};
    for (float poison : {kNan, kInf}) {
      on_every_isa([&] {
        AttentionProblem problem(c);
        problem.q.array.set(problem.q.index(0, 1, 2, 3), kNan);
        problem.v.array.set(problem.v.index(0, 0, 49, 5), poison);
        AttentionResult result(c);
        run(problem, result);
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

TEST(AttentionReach, ANanAmongCodesReachesItsChannelAndNoOther) {
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

TEST(AttentionReach, WhatAMaskHidesReachesNothing) {
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
          run(problem, clean);
          run(poisoned, result);
          expect_same(result, clean);
        });
      }
    }
  }
}

TEST(AttentionReach, WhatTheCausalRuleHidesReachesNothing) {
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
        run(problem, clean);
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

}  // namespace
}  // namespace plimsoll::kernels::attention_reach_test
