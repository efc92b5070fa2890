#include "plimsoll/ops/linear/low_rank.h"

#include <c10/util/Exception.h>
#include <torch/csrc/autograd/autograd.h>

#include "plimsoll/ops/memory/saved_bytes.h"
#include "plimsoll/ops/tensor/dtype.h"
#include "plimsoll/ops/testing.h"

namespace plimsoll::ops {
namespace {

using testing::expect_equal;
using testing::expect_within;
using testing::leaf;
using testing::sample;
using testing::ScopedThreads;

constexpr double kFactor = 0.75;

// Two adapters of a layer: of the rows 2, 3, ... and of the last ones.
struct AdaptedSample {
  at::Tensor x, y, grad;
  std::vector<at::Tensor> a, b;
  std::vector<int64_t> first_rows;

  AdaptedSample(int64_t tokens, int64_t in, int64_t out, int64_t rank)
      : x(sample({tokens, in})), y(sample({tokens, out})), grad(sample({tokens, out})), first_rows({2, out - 3}) {
    for (const int64_t rows : {out - 6, int64_t{3}}) {
      a.push_back(at::randn({rank, in}) * 0.3);
      b.push_back(at::randn({rows, rank}) * 0.3);
    }
  }

  std::vector<LowRank> adapters() const { return {{a[0], b[0], first_rows[0]}, {a[1], b[1], first_rows[1]}}; }
  at::Tensor outer(const at::Tensor& all, size_t i) const { return all.narrow(1, first_rows[i], b[i].size(0)); }
};

// Exact values, and the sums of the magnitudes of all products in them.
struct WithMagnitude {
  at::Tensor value, magnitude;

  explicit WithMagnitude(const at::Tensor& x) : value(x.to(at::kDouble)), magnitude(value.abs()) {}
  WithMagnitude(at::Tensor of, at::Tensor sum) : value(std::move(of)), magnitude(std::move(sum)) {}
  WithMagnitude times(const WithMagnitude& other) const {
    return {value.matmul(other.value), magnitude.matmul(other.magnitude)};
  }
  WithMagnitude t() const { return {value.t(), magnitude.t()}; }

  // terms: FP32 roundings of unit 2^-24 behind each product, at most; twice that unit covers what is of second order.
  void expect(const at::Tensor& got, int64_t terms, const std::string& what) const {
    const double unit = testing::unit_roundoff(format_of(got.scalar_type(), "test"));
    const at::Tensor sums = magnitude * static_cast<double>(terms + kernels::kGemmExtraRoundings) * 0x1p-23;
    expect_within(got, value, sums + (value.abs() + sums) * unit, what);
  }
};

// Adapters of a layer that makes y, whatever x is.
at::Tensor add_low_rank(const at::Tensor& y, const at::Tensor& x, const std::vector<LowRank>& adapters,
                        const LowRankOptions& options) {
  return with_low_rank(x, adapters, options, [&](const at::Tensor&) { return y.clone(); });
}

TEST(LowRank, OutputAndGradientsAreNearDouble) {
  at::manual_seed(1);
  for (const auto& [tokens, in, rank] : {std::array<int64_t, 3>{1, 1, 1}, {5, 33, 4}, {600, 70, 17}}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const std::string what = std::to_string(tokens) + " tokens, " + c10::toString(dtype) + ": ";
      AdaptedSample layer(tokens, in, 9, rank);
      const at::Tensor x = leaf(layer.x, dtype), y = leaf(layer.y, dtype);
      for (std::vector<at::Tensor>* weights : {&layer.a, &layer.b}) {
        for (at::Tensor& each : *weights) each.set_requires_grad(true);
      }
      const at::Tensor output = add_low_rank(y, x, layer.adapters(), {.factor = kFactor});
      EXPECT_EQ(output.scalar_type(), dtype);
      torch::autograd::backward({output}, {layer.grad.to(dtype)});

      WithMagnitude exact_output(layer.y), exact_x(at::zeros_like(layer.x));
      for (size_t i = 0; i < 2; ++i) {
        const WithMagnitude a(layer.a[i].detach()), b(layer.b[i].detach() * kFactor), input(layer.x);
        const WithMagnitude inner = input.times(a.t()), part = inner.times(b.t());
        layer.outer(exact_output.value, i).add_(part.value);
        layer.outer(exact_output.magnitude, i).add_(part.magnitude);
        const WithMagnitude grad(layer.outer(layer.grad, i)), inner_grad = grad.times(b), through = inner_grad.times(a);
        exact_x.value.add_(through.value);
        exact_x.magnitude.add_(through.magnitude);
        inner_grad.t().times(input).expect(layer.a[i].grad(), tokens + 9, what + "A");
        WithMagnitude exact_b = grad.t().times(inner);
        exact_b.value.mul_(kFactor);
        exact_b.magnitude.mul_(kFactor);
        exact_b.expect(layer.b[i].grad(), tokens + in, what + "B");
      }
      exact_output.expect(output.detach(), in + 2 * rank, what + "output");
      exact_x.expect(x.grad(), 9 + 2 * rank, what + "x");
      expect_equal(y.grad(), layer.grad.to(dtype), what + "y");
    }
  }
}

TEST(LowRank, ARowHasTheSameBitsInEveryBatchAndOnAnyNumberOfThreads) {
  at::manual_seed(2);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const AdaptedSample layer(600, 70, 40, 8);
    const at::Tensor x = layer.x.to(dtype), y = layer.y.to(dtype);
    const at::Tensor all = add_low_rank(y, x, layer.adapters(), {.factor = kFactor});
    for (const int threads : {1, 3}) {
      const ScopedThreads scope(threads);
      expect_equal(add_low_rank(y, x, layer.adapters(), {.factor = kFactor}), all, "threads");
      for (const int64_t row : {0, 255, 256, 599}) {
        expect_equal(add_low_rank(y.narrow(0, row, 1), x.narrow(0, row, 1), layer.adapters(), {.factor = kFactor}),
                     all.narrow(0, row, 1), "row");
      }
    }
  }
}

TEST(LowRank, WhatAdaptersAddToTheGradientsOfTheLayerIsWhatTheyAreAlone) {
  at::manual_seed(7);
  const auto whole = [](at::IntArrayRef sizes) { return at::randint(-1, 2, sizes); };  // whose sums are exact in BF16
  for (const double dropout : {0.0, 0.5}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const at::Tensor a = leaf(whole({4, 9}).to(at::kFloat)), b = leaf(whole({7, 4}).to(at::kFloat));
      const at::Tensor x = leaf(whole({2, 30, 9}), dtype), grad = whole({2, 30, 9}).to(dtype);
      const auto run = [&](const LayerOfInput& layer) {
        at::manual_seed(8);
        x.mutable_grad() = at::Tensor();
        const at::Tensor output = with_low_rank(x, {{a, b, 1}}, {.dropout = dropout}, layer);
        torch::autograd::backward({output}, {grad});
        return std::pair(output.detach(), x.grad());
      };
      const auto [sum, both] = run([](const at::Tensor& input) { return input * 2; });
      const auto [zeros, alone] = run([](const at::Tensor& input) { return at::zeros_like(input); });
      const at::NoGradGuard no_grad;
      const std::string what = std::string(c10::toString(dtype)) + ", dropout " + std::to_string(dropout);
      EXPECT_NE(alone.abs().max().item<float>(), 0) << what;
      expect_equal(sum, 2 * x + zeros, what);
      expect_equal(both, 2 * grad + alone, what);
    }
  }
}

TEST(LowRank, AnInputWithoutAGradientAsksTheLayerForNone) {
  const at::Tensor a = leaf(at::ones({2, 5})), b = leaf(at::ones({4, 2}));
  for (const bool wanted : {false, true}) {
    const at::Tensor x = at::ones({3, 5}).set_requires_grad(wanted);
    with_low_rank(x, {{a, b, 0}}, {}, [&](const at::Tensor& input) {
      EXPECT_EQ(input.requires_grad(), wanted);
      return at::zeros({3, 4});
    });
  }
}

// Sums of small whole numbers are exact, so that what is linear is so to the bit.
TEST(LowRank, BackwardDrawsTheMasksOfForward) {
  at::manual_seed(3);
  const auto whole = [](at::IntArrayRef sizes) { return at::randint(-3, 4, sizes).to(at::kFloat); };
  const at::Tensor x = leaf(whole({60, 20})), a = leaf(whole({4, 20})), b = leaf(whole({7, 4})), y = whole({60, 9});
  const at::Tensor grad = whole({60, 9}), to_a = whole({4, 20}), to_x = whole({60, 20});
  const auto run = [&](const at::Tensor& of_x, const at::Tensor& of_a) {
    at::manual_seed(4);
    return add_low_rank(y, of_x, {{of_a, b, 1}, {of_a, b, 2}}, {.dropout = 0.5});
  };
  const at::Tensor output = run(x, a);
  torch::autograd::backward({output}, {grad});
  const at::NoGradGuard no_grad;
  EXPECT_EQ((a.grad() * to_a).sum().item<float>(), ((run(x, a + to_a) - output) * grad).sum().item<float>());
  EXPECT_EQ((x.grad() * to_x).sum().item<float>(), ((run(x + to_x, a) - output) * grad).sum().item<float>());
  EXPECT_EQ((b.grad() * b).sum().item<float>(), ((output - y) * grad).sum().item<float>());
}

TEST(LowRank, DropoutLeavesItsShareAndDrawsForEachAdapterAnew) {
  at::manual_seed(5);
  constexpr int64_t kTokens = 4000;
  const at::Tensor one = at::ones({1, 1}), x = at::ones({kTokens, 1}), y = at::zeros({kTokens, 2});
  const at::Tensor output = add_low_rank(y, x, {{one, one, 0}, {one, one, 1}}, {.dropout = 0.25});
  const at::Tensor left = output.ne(0);
  // One rounding of 1 / (1 - dropout) to FP32.
  EXPECT_EQ(output.max().item<float>(), static_cast<float>(1 / 0.75));
  const auto expect_share = [](const at::Tensor& draws, double share) {  // within five deviations of independent draws
    const double deviation = std::sqrt(share * (1 - share) / kTokens);
    EXPECT_NEAR(draws.to(at::kDouble).mean().item<double>(), share, 5 * deviation);
  };
  expect_share(left.select(1, 0), 0.75);
  expect_share(left.select(1, 1), 0.75);
  expect_share(left.select(1, 0).eq(left.select(1, 1)), 0.75 * 0.75 + 0.25 * 0.25);
}

TEST(LowRank, SavesItsInputAndTheNarrowProductAlone) {
  at::manual_seed(6);
  for (const double dropout : {0.0, 0.5}) {
    AdaptedSample layer(100, 70, 40, 8);
    const at::Tensor x = layer.x.to(at::kBFloat16), y = layer.y.to(at::kBFloat16);
    std::vector<at::Tensor> weights;
    for (const LowRank& adapter : layer.adapters()) {
      weights.push_back(adapter.a.set_requires_grad(true));
      weights.push_back(adapter.b.set_requires_grad(true));
    }
    const SavedBytesCounter counter(weights);
    const at::Tensor output = add_low_rank(y, x, layer.adapters(), {.dropout = dropout});
    EXPECT_EQ(counter.bytes(), 100 * 70 * 2 + 100 * (8 + 8) * 4) << dropout;
  }
}

TEST(LowRank, RefusesWhatDoesNotFitTheLayer) {
  const at::Tensor x = at::zeros({3, 5}), y = at::zeros({3, 7}), a = at::zeros({2, 5}), b = at::zeros({4, 2});
  EXPECT_NO_THROW(add_low_rank(y, x, {{a, b, 3}}, {}));
  EXPECT_THROW(add_low_rank(y, x, {{a, b, 4}}, {}), c10::Error);
  EXPECT_THROW(add_low_rank(y, x, {{a, b, -1}}, {}), c10::Error);
  EXPECT_THROW(add_low_rank(y, x, {{at::zeros({2, 6}), b, 0}}, {}), c10::Error);
  EXPECT_THROW(add_low_rank(y, x, {{a, at::zeros({4, 3}), 0}}, {}), c10::Error);
  EXPECT_THROW(add_low_rank(y, at::zeros({2, 5}), {{a, b, 0}}, {}), c10::Error);
  EXPECT_THROW(add_low_rank(y, x, {{a, b, 0}}, {.dropout = 1}), c10::Error);
}

}  // namespace
}  // namespace plimsoll::ops
