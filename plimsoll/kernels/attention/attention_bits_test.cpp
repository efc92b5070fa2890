// The bits of a result: the same for any number of threads and whatever else is in the batch.
#include <gtest/gtest.h>

#include <optional>

#include "plimsoll/kernels/attention/attention_test_support.h"

namespace plimsoll::kernels {
namespace {

using namespace testing;

void run(const AttentionProblem& problem, AttentionResult& result) {
  run_forward(problem, result);
  if (!problem.c.codes) run_backward(problem, result);
}

std::vector<AttentionCase> cases() {
  std::vector<AttentionCase> result;
  for (Format format : {Format::kFp32, Format::kBf16}) {
    for (int64_t queries : {3, 200}) {
      AttentionCase c = {.format = format, .causal = Causal::kBottomRight, .dropout = queries > 8 ? 0.25f : 0.0f};
      c.shape.queries = queries;
      c.shape.keys = 230;
      result.push_back(c);
      c.bias = Extent::kOverBatch;
      c.mask = Extent::kOverHeadsAndQueries;
      result.push_back(c);
      c.window = 75;
      result.push_back(c);
    }
  }
  return result;
}

TEST(AttentionBits, DoNotDependOnThreads) {
  for (runtime::Isa isa : attention_isas()) {
    const runtime::ScopedIsa scope(isa);
    for (const AttentionCase& c : cases()) {
      SCOPED_TRACE(describe(c));
      const AttentionProblem problem(c);
      std::optional<AttentionResult> first;
      for (int threads : {1, 2, 3}) {
        const ScopedThreads team(threads);
        AttentionResult result(c);
        run(problem, result);
        if (!first) first.emplace(result);
        EXPECT_TRUE(same(result.output.array, first->output.array));
        EXPECT_TRUE(same(result.lse, first->lse));
        EXPECT_TRUE(same(result.grad_q.array, first->grad_q.array));
        EXPECT_TRUE(same(result.grad_k.array, first->grad_k.array));
        EXPECT_TRUE(same(result.grad_v.array, first->grad_v.array));
        EXPECT_TRUE(same(result.grad_bias, first->grad_bias));
      }
    }
  }
}

TEST(AttentionBits, DoNotDependOnTheRestOfTheBatch) {
  for (runtime::Isa isa : attention_isas()) {
    const runtime::ScopedIsa scope(isa);
    for (AttentionCase c : cases()) {
      SCOPED_TRACE(describe(c));
      const AttentionProblem both(c);
      AttentionProblem one = both;
      one.c.shape.batch = 1;
      AttentionResult of_both(c), of_one(one.c);
      run(both, of_both);
      run(one, of_one);
      const AttentionShape& s = one.c.shape;
      for (int64_t h = 0; h < s.heads; ++h) {
        for (int64_t i = 0; i < s.queries; ++i) {
          for (int64_t channel = 0; channel < s.channels; ++channel) {
            ASSERT_EQ(of_one.output.at(0, h, i, channel), of_both.output.at(0, h, i, channel));
            ASSERT_EQ(of_one.grad_q.at(0, h, i, channel), of_both.grad_q.at(0, h, i, channel));
          }
        }
      }
    }
  }
}

TEST(AttentionBits, AWindowOfAllKeysHasThoseOfNone) {
  for (runtime::Isa isa : attention_isas()) {
    const runtime::ScopedIsa scope(isa);
    for (AttentionCase c : cases()) {
      SCOPED_TRACE(describe(c));
      AttentionCase whole = c;
      c.window = c.shape.keys;
      whole.window = 0;
      AttentionResult of_window(c), of_all(whole);
      run(AttentionProblem(c), of_window);
      run(AttentionProblem(whole), of_all);
      EXPECT_TRUE(same(of_window.output.array, of_all.output.array));
      EXPECT_TRUE(same(of_window.grad_q.array, of_all.grad_q.array));
      EXPECT_TRUE(same(of_window.grad_k.array, of_all.grad_k.array));
      EXPECT_TRUE(same(of_window.grad_v.array, of_all.grad_v.array));
    }
  }
}

TEST(AttentionBits, DropoutFollowsSeedAndOffset) {
  AttentionCase c = {.dropout = 0.5f};
  const AttentionProblem problem(c);
  const auto output_of = [&](uint64_t seed, uint64_t offset) {
    AttentionResult result(c);
    AttentionForward args = {.shape = c.shape,
                             .rules = problem.rules(),
                             .q = problem.q.input(),
                             .k = problem.k.input(),
                             .v = problem.v.input(),
                             .output = result.output.output()};
    args.rules.dropout = {.probability = c.dropout, .seed = seed, .offset = offset};
    attention_forward(args);
    return result.output.array;
  };
  const Array first = output_of(1, 2);
  EXPECT_TRUE(same(first, output_of(1, 2)));
  EXPECT_FALSE(same(first, output_of(1, 3)));
  EXPECT_FALSE(same(first, output_of(2, 2)));
}

}  // namespace
}  // namespace plimsoll::kernels
