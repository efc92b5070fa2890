#include "plimsoll/ops/attention.h"

#include "plimsoll/ops/testing.h"

namespace plimsoll::ops {
namespace {

constexpr double kBf16Rounding = 0x1p-8;  // half a unit in the last place, relative

struct Exact {
  at::Tensor weights, output, grad_query, grad_key, grad_value;
  at::Tensor output_bound, query_bound, key_bound, value_bound;
};

// In double, with the error that FP32 sums and one rounding of the output to bf16 may cause. The backward pass takes
// sum(grad * output) from the rounded output: that error enters the gradients of query and key through the weights.
Exact exact_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const at::Tensor& grad,
                      bool causal) {
  const at::Tensor q = query.to(at::kDouble), k = key.to(at::kDouble), v = value.to(at::kDouble);
  const at::Tensor g = grad.to(at::kDouble);
  const double scale = 1 / std::sqrt(static_cast<double>(q.size(3)));
  at::Tensor scores = at::matmul(q, k.transpose(2, 3)) * scale;
  if (causal) {
    const at::Tensor seen = at::ones({q.size(2), k.size(2)}, at::kBool).tril();
    scores = scores.masked_fill(seen.logical_not(), -std::numeric_limits<double>::infinity());
  }
  Exact e;
  e.weights = scores.softmax(-1);
  e.output = at::matmul(e.weights, v);
  const at::Tensor grad_weights = at::matmul(g, v.transpose(2, 3));
  const at::Tensor along = (g * e.output).sum(-1, true);
  const at::Tensor grad_scores = e.weights * (grad_weights - along) * scale;
  e.grad_query = at::matmul(grad_scores, k);
  e.grad_key = at::matmul(grad_scores.transpose(2, 3), q);
  e.grad_value = at::matmul(e.weights.transpose(2, 3), g);

  // FP32: each of the four chained sums errs by its length in units of 2^-24 of the sum of magnitudes.
  const double fp32 = 4 * static_cast<double>(q.size(3) + k.size(2) + q.size(2) + 16) * 0x1p-24;
  const at::Tensor magnitude =
      e.weights * (at::matmul(g.abs(), v.abs().transpose(2, 3)) + (g * e.output).abs().sum(-1, true)) * scale;
  const at::Tensor score_bound =
      magnitude * fp32 + e.weights * (g * e.output).abs().sum(-1, true) * kBf16Rounding * scale;
  const auto rounded = [](const at::Tensor& x) { return x.abs() * kBf16Rounding + 1e-30; };
  e.output_bound = rounded(e.output) + at::matmul(e.weights, v.abs()) * fp32;
  e.query_bound = rounded(e.grad_query) + at::matmul(score_bound, k.abs());
  e.key_bound = rounded(e.grad_key) + at::matmul(score_bound.transpose(2, 3), q.abs());
  e.value_bound = rounded(e.grad_value) + at::matmul(e.weights.transpose(2, 3), g.abs()) * fp32;
  return e;
}

void expect_within(const at::Tensor& actual, const at::Tensor& exact, const at::Tensor& bound) {
  EXPECT_TRUE(((actual.to(at::kDouble) - exact).abs() <= bound).all().item<bool>());
}

at::Tensor narrow_leaf(at::IntArrayRef sizes) { return testing::leaf(at::randn(sizes), at::kBFloat16); }

TEST(OpsAttention, MatchesTheCompositionInDouble) {
  at::manual_seed(1);
  for (const bool causal : {false, true}) {
    for (const int64_t queries : {1, 5, 70}) {
      const int64_t keys = causal ? queries : queries + 3;
      at::Tensor q = narrow_leaf({2, 3, queries, 16}), k = narrow_leaf({2, 3, keys, 16}),
                 v = narrow_leaf({2, 3, keys, 16});
      const at::Tensor grad = at::randn({2, 3, queries, 16}).to(at::kBFloat16);
      const at::Tensor output = attention(q, k, v, {.causal = causal});
      EXPECT_EQ(output.scalar_type(), at::kBFloat16);
      output.backward(grad);
      const Exact e = exact_attention(q.detach(), k.detach(), v.detach(), grad, causal);
      expect_within(output.detach(), e.output, e.output_bound);
      expect_within(q.grad(), e.grad_query, e.query_bound);
      expect_within(k.grad(), e.grad_key, e.key_bound);
      expect_within(v.grad(), e.grad_value, e.value_bound);
    }
  }
}

TEST(OpsAttention, BoundsAreTightEnoughToFail) {
  at::manual_seed(2);
  const at::Tensor q = at::randn({1, 2, 9, 16}).to(at::kBFloat16), k = at::randn({1, 2, 9, 16}).to(at::kBFloat16);
  const Exact e = exact_attention(q, k, k, q, true);
  EXPECT_FALSE(((e.output * 1.02 - e.output).abs() <= e.output_bound).all().item<bool>());
  EXPECT_FALSE(((e.grad_query * 1.5 - e.grad_query).abs() <= e.query_bound).all().item<bool>());
}

TEST(OpsAttention, BitsDoNotDependOnThreads) {
  const auto run = [](int threads) {
    const testing::ScopedThreads scope(threads);
    at::manual_seed(3);
    at::Tensor q = narrow_leaf({2, 3, 65, 32}), k = narrow_leaf({2, 3, 65, 32}), v = narrow_leaf({2, 3, 65, 32});
    const at::Tensor output = attention(q, k, v, {.causal = true});
    output.sum().backward();
    return std::vector<at::Tensor>{output.detach(), q.grad(), k.grad(), v.grad()};
  };
  const auto one = run(1);
  for (const int threads : {2, 3}) {
    const auto many = run(threads);
    for (size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(at::equal(one[i], many[i])) << i;
  }
}

TEST(OpsAttention, RefusesWhatItDoesNotCompute) {
  const at::Tensor narrow = at::zeros({1, 2, 3, 8}, at::kBFloat16);
  EXPECT_THROW(attention(narrow.to(at::kFloat), narrow, narrow, {}), c10::Error);
  EXPECT_THROW(attention(narrow, narrow.select(0, 0), narrow, {}), c10::Error);
  EXPECT_THROW(attention(narrow.slice(2, 0, 2), narrow, narrow, {.causal = true}), c10::Error);
}

}  // namespace
}  // namespace plimsoll::ops
