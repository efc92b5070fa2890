#include "plimsoll/ops/embedding/embedding.h"

#include "plimsoll/ops/testing.h"

namespace plimsoll::ops {
namespace {

using testing::expect_equal;
using testing::leaf;
using testing::sample;

// Small whole numbers: every sum is exact, so the result is the only one.
at::Tensor whole(at::IntArrayRef sizes) { return at::randint(-3, 4, sizes, at::kFloat); }

TEST(OpsEmbedding, IsTheCompositionInAnyDtype) {
  at::manual_seed(1);
  const at::Tensor tokens = at::randint(11, {3, 5}, at::kLong);
  for (const at::ScalarType weights : {at::kFloat, at::kBFloat16}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const at::Tensor token_values = whole({13, 20}), position_values = whole({9, 20});
      const at::Tensor token_weight = leaf(token_values, weights), position_weight = leaf(position_values, weights);
      const at::Tensor got = embedding({tokens, token_weight, position_weight, 2}, dtype);
      const at::Tensor exact_tokens = leaf(token_values), exact_positions = leaf(position_values);
      const at::Tensor exact = at::embedding(exact_tokens, tokens) + exact_positions.slice(0, 2, 7);
      const at::Tensor grad = whole(exact.sizes());
      got.backward(grad.to(dtype));
      exact.backward(grad);
      expect_equal(got.detach(), exact.detach().to(dtype), "output");
      expect_equal(token_weight.grad(), exact_tokens.grad().to(weights), "token gradient");
      expect_equal(position_weight.grad(), exact_positions.grad().to(weights), "position gradient");
    }
  }
}

TEST(OpsEmbedding, WorksWithoutPositionsAndOnSlices) {
  at::manual_seed(2);
  const at::Tensor tokens = at::randint(11, {5, 3}, at::kLong).t();
  const at::Tensor weight = leaf(whole({11, 7})), expected = leaf(weight);
  const at::Tensor got = embedding({.tokens = tokens, .token_weight = weight}, at::kFloat);
  const at::Tensor exact = at::embedding(expected, tokens);
  expect_equal(got.detach(), exact.detach(), "output");
  const at::Tensor grad = whole({7, 3, 5}).permute({1, 2, 0});
  got.backward(grad);
  exact.backward(grad);
  expect_equal(weight.grad(), expected.grad(), "gradient");
}

TEST(OpsEmbedding, BitsDoNotDependOnThreads) {
  at::manual_seed(3);
  const at::Tensor tokens = at::randint(50, {8, 40}, at::kLong), grad = sample({8, 40, 96});
  const auto run = [&](int threads) {
    const testing::ScopedThreads scope(threads);
    const at::Tensor token_weight = leaf(at::zeros({50, 96})), position_weight = leaf(at::zeros({64, 96}));
    embedding({tokens, token_weight, position_weight}, at::kFloat).backward(grad);
    return std::vector<at::Tensor>{token_weight.grad(), position_weight.grad()};
  };
  const auto one = run(1), two = run(2), seven = run(7);
  for (size_t i = 0; i < one.size(); ++i) {
    expect_equal(two[i], one[i], "2 threads");
    expect_equal(seven[i], one[i], "7 threads");
  }
}

TEST(OpsEmbedding, RefusesWhatItCannotLookUp) {
  const at::Tensor weight = sample({5, 4}), positions = sample({3, 4}), tokens = at::zeros({1, 3}, at::kLong);
  const auto run = [&](const TokensAndPositions& input) { embedding(input, at::kFloat); };
  run({tokens, weight, positions});
  EXPECT_THROW(run({tokens + 5, weight, positions}), c10::Error);
  EXPECT_THROW(run({tokens - 1, weight, positions}), c10::Error);
  EXPECT_THROW(run({tokens.to(at::kInt), weight, positions}), c10::Error);
  EXPECT_THROW(run({tokens[0], weight, positions}), c10::Error);
  EXPECT_THROW(run({tokens, weight, positions, 1}), c10::Error);
  EXPECT_THROW(run({tokens, weight, positions, -1}), c10::Error);
  EXPECT_THROW(run({tokens, weight, sample({3, 5})}), c10::Error);
  EXPECT_THROW(run({tokens, weight, positions.to(at::kHalf)}), c10::Error);
  EXPECT_THROW(run({tokens, weight.to(at::kDouble), at::Tensor()}), c10::Error);
}

}  // namespace
}  // namespace plimsoll::ops
