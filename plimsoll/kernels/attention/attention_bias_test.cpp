// Biases as large as their formats: masks of the most negative finite number, by which a row may see nothing else.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "plimsoll/kernels/attention/attention_test_support.h"

namespace plimsoll::kernels::attention_bias_test {
namespace {

using namespace testing;

constexpr float kInf = std::numeric_limits<float>::infinity();

AttentionCase biased_case(Format format, int64_t queries) {
  AttentionCase c = {.format = format, .bias = Extent::kFull, .bias_format = format};
  c.shape.queries = queries;
  c.shape.keys = 150;
  return c;
}

void expect_exact(const AttentionProblem& problem) {
  const AttentionCase& c = problem.c;
  on_every_isa([&] {
    SCOPED_TRACE(describe(c));
    const ExactAttention exact = exact_attention(problem, multiplies_pairs(c));
    AttentionResult result(c);
    run_forward(problem, result);
    run_backward(problem, result);
    const auto expect_within = [](const Array& got, const ExactTensor& right, const char* name) {
      std::string fault;
      EXPECT_TRUE(within(got, right, &fault)) << name << ", " << fault;
    };
    expect_within(result.output.array, exact.output, "output");
    expect_within(result.lse, exact.lse, "lse");
    expect_within(result.grad_q.array, exact.grad_q, "grad_q");
    expect_within(result.grad_k.array, exact.grad_k, "grad_k");
    expect_within(result.grad_v.array, exact.grad_v, "grad_v");
    expect_within(result.grad_bias, exact.grad_bias, "grad_bias");
  });
}

// Every third row has `bias` for all keys, every other for the first 70 or the last.
void mask_with(float bias, AttentionProblem& problem) {
  const AttentionShape& s = problem.c.shape;
  for (int64_t i = 0; i < problem.bias.count(); ++i) {
    const int64_t row = i / s.keys, key = i % s.keys;
    if (row % 3 == 0 || (row % 3 == 1 ? key < 70 : key >= s.keys - 70)) problem.bias.set(i, bias);
  }
}

TEST(AttentionBias, TheLargestFiniteNumbersMaskNothingAlone) {
  for (Format format : {Format::kFp32, Format::kBf16}) {
    for (int64_t queries : {5, 37, 70}) {
      for (float bias : {-format::max_finite(format), format::max_finite(format)}) {
        AttentionProblem problem(biased_case(format, queries));
        mask_with(bias, problem);
        expect_exact(problem);
      }
    }
  }
}

TEST(AttentionBias, LargeBiasesHoldUnderEveryRule) {
  for (Format format : {Format::kFp32, Format::kBf16}) {
    AttentionCase c = biased_case(format, 90);
    c.dropout = 0.25f;
    c.key_lengths = true;
    c.mask = Extent::kOverBatch;
    for (int64_t window : {0, 30}) {
      c.causal = Causal::kBottomRight;
      c.window = window;
      AttentionProblem problem(c);
      mask_with(-format::max_finite(format), problem);
      expect_exact(problem);
    }
  }
}

TEST(AttentionBias, LargeBiasesHoldOverPanelsOfKeys) {
  for (Format format : {Format::kFp32, Format::kBf16}) {
    AttentionCase c = biased_case(format, 70);
    c.shape = shape_of(70, 400, 256);
    AttentionProblem problem(c);
    mask_with(-format::max_finite(format), problem);
    expect_exact(problem);
  }
}

TEST(AttentionBias, AMaskOfTheLowestNumberHidesAsMinusInfinityDoes) {
  for (Format format : {Format::kFp32, Format::kBf16}) {
    for (int64_t queries : {5, 150}) {
      AttentionProblem lowest(biased_case(format, queries));
      AttentionProblem infinite = lowest;
      for (int64_t i = 0; i < lowest.bias.count(); ++i) {
        if (i % lowest.c.shape.keys <= i / lowest.c.shape.keys % queries) continue;
        lowest.bias.set(i, -format::max_finite(format));
        infinite.bias.set(i, -kInf);
      }
      on_every_isa([&] {
        AttentionResult of_lowest(lowest.c), of_infinite(lowest.c);
        for (auto [problem, result] : {std::pair{&lowest, &of_lowest}, std::pair{&infinite, &of_infinite}}) {
          run_forward(*problem, *result);
          run_backward(*problem, *result);
        }
        EXPECT_TRUE(same(of_lowest.output.array, of_infinite.output.array));
        EXPECT_TRUE(same(of_lowest.lse, of_infinite.lse));
        EXPECT_TRUE(same(of_lowest.grad_q.array, of_infinite.grad_q.array));
        EXPECT_TRUE(same(of_lowest.grad_k.array, of_infinite.grad_k.array));
        EXPECT_TRUE(same(of_lowest.grad_v.array, of_infinite.grad_v.array));
        EXPECT_TRUE(same(of_lowest.grad_bias, of_infinite.grad_bias));
      });
    }
  }
}

TEST(AttentionBias, InfinityMakesItsRowNan) {
  for (int64_t queries : {5, 37}) {
    AttentionProblem problem(biased_case(Format::kFp32, queries));
    problem.bias.set(7, kInf);
    on_every_isa([&] {
      AttentionResult result(problem.c);
      run_forward(problem, result);
      EXPECT_TRUE(std::isnan(result.output.at(0, 0, 0, 0)));
      EXPECT_TRUE(std::isfinite(result.output.at(0, 0, 1, 0)));
    });
  }
}

// The weights of a row add up to 1 in backward, too: so do gradients of values with the same gradient of the output.
TEST(AttentionBias, WeightsOfBackwardAddUpToOneFarFromZero) {
  for (float bias : {-1e4f, -1e6f, -1e9f, -1e30f, 1e9f}) {
    AttentionProblem problem(biased_case(Format::kFp32, 70));
    const AttentionShape& s = problem.c.shape;
    for (int64_t i = 0; i < problem.bias.count(); ++i) problem.bias.set(i, bias);
    for (int64_t i = 0; i < problem.grad.array.count(); ++i) problem.grad.array.set(i, 1.0f);
    on_every_isa([&] {
      AttentionResult result(problem.c);
      run_forward(problem, result);
      run_backward(problem, result);
      double sum = 0;
      for (int64_t key = 0; key < s.keys; ++key) sum += result.grad_v.at(0, 0, key, 3);
      const double rows = static_cast<double>(s.queries * s.heads / s.groups);
      EXPECT_NEAR(sum, rows, rows * 1e-5) << bias;
    });
  }
}

}  // namespace
}  // namespace plimsoll::kernels::attention_bias_test
