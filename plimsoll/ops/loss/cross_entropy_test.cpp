// Losses against torch's in double.
#include "plimsoll/ops/loss/cross_entropy.h"

#include "plimsoll/ops/loss/cross_entropy_pass.h"
#include "plimsoll/ops/loss/loss_reduction.h"
#include "plimsoll/ops/testing.h"

namespace plimsoll::ops {
namespace {

using testing::expect_equal;
using testing::expect_within;
using testing::leaf;
using testing::sample;

constexpr std::array kDtypes = {at::kFloat, at::kBFloat16, at::kHalf};
constexpr std::array kReductions = {Reduction::kMean, Reduction::kSum, Reduction::kNone};

at::Reduction::Reduction torch_reduction(Reduction reduction) {
  return reduction == Reduction::kNone   ? at::Reduction::None
         : reduction == Reduction::kMean ? at::Reduction::Mean
                                         : at::Reduction::Sum;
}

at::Tensor targets_for(at::IntArrayRef sizes, int64_t vocabulary, int64_t ignored) {
  const at::Tensor targets = at::randint(vocabulary, sizes, at::kLong);
  targets.flatten().slice(0, 1, std::nullopt, 5).fill_(ignored);
  return targets;
}

at::Tensor in_double(const at::Tensor& logits, const at::Tensor& targets, const CrossEntropyOptions& options) {
  const at::Tensor weight = options.weight.defined() ? options.weight.to(at::kDouble) : options.weight;
  const at::Tensor loss =
      at::cross_entropy_loss(logits.flatten(0, -2), targets.flatten(), weight, torch_reduction(options.reduction),
                             options.ignore_index, options.label_smoothing);
  return options.reduction == Reduction::kNone ? loss.view(targets.sizes()) : loss;
}

// FP32 inside, relative to the largest term; 256 units hold every bound of docs/numerics.md for logits this small. Then
// roundings to the dtype of `got`.
void expect_close(const at::Tensor& got, const at::Tensor& exact, int roundings, const std::string& what) {
  const at::Tensor magnitude = exact.abs();
  const double unit = got.scalar_type() == at::kBFloat16 ? 0x1p-8 : got.scalar_type() == at::kHalf ? 0x1p-11 : 0x1p-24;
  const double subnormal = got.scalar_type() == at::kHalf ? 0x1p-25 : 0;
  const double largest = exact.numel() == 0 ? 0 : magnitude.max().item<double>();
  expect_within(got, exact, magnitude * (unit * roundings) * (1 + 2 * unit) + subnormal + 256 * 0x1p-24 * largest,
                what);
}

TEST(OpsCrossEntropy, MatchesTorchInDouble) {
  at::manual_seed(1);
  for (const at::ScalarType dtype : kDtypes) {
    for (const Reduction reduction : kReductions) {
      for (const double smoothing : {0.0, 0.25}) {
        for (const bool weighted : {false, true}) {
          if (weighted && smoothing > 0) continue;
          const std::string what = std::string(name(reduction)) + " " + c10::toString(dtype);
          const at::Tensor x = leaf(sample({3, 7, 45}, 2.0), dtype), exact_x = leaf(x, at::kDouble);
          const CrossEntropyOptions options{.reduction = reduction,
                                            .ignore_index = 3,
                                            .label_smoothing = smoothing,
                                            .weight = weighted ? at::rand({45}) + 0.5 : at::Tensor()};
          const at::Tensor targets = targets_for({3, 7}, 45, 3);
          const at::Tensor got = cross_entropy(x, targets, options), exact = in_double(exact_x, targets, options);
          EXPECT_EQ(got.scalar_type(), at::kFloat);
          // Powers of two, so that only what is named is rounded.
          const at::Tensor grad = at::pow(2.0, at::randint(-2, 3, exact.sizes(), at::kFloat));
          got.backward(grad);
          exact.backward(grad.to(at::kDouble));
          expect_close(got.detach(), exact.detach(), 1, what + " loss");
          expect_close(x.grad(), exact_x.grad(), 1, what + " gradient");
        }
      }
    }
  }
}

TEST(OpsCrossEntropy, ScalesTheGradientByWhatComesIn) {
  at::manual_seed(2);
  const at::Tensor targets = targets_for({6}, 33, -100);
  for (const at::ScalarType dtype : kDtypes) {
    const at::Tensor x = leaf(sample({6, 33}), dtype), exact_x = leaf(x, at::kDouble);
    const at::Tensor loss = cross_entropy(x, targets);
    loss.backward(at::scalar_tensor(3.7), /*retain_graph=*/true);
    in_double(exact_x, targets, {}).backward(at::scalar_tensor(3.7f, at::kDouble));
    expect_close(x.grad(), exact_x.grad(), 2, c10::toString(dtype));
    const at::Tensor first = x.grad().clone();
    x.mutable_grad().reset();
    loss.backward(at::scalar_tensor(3.7));  // what was saved is as it was
    expect_equal(x.grad(), first, "second backward");
  }
}

TEST(OpsCrossEntropy, Fp16GradientsUnderALossScaleDoNotUnderflow) {
  at::manual_seed(3);
  const at::Tensor x = leaf(sample({4096, 300}), at::kHalf), targets = at::randint(300, {4096}, at::kLong);
  cross_entropy(x, targets).backward(at::scalar_tensor(65536.0f));
  EXPECT_EQ((x.grad() == 0).sum().item<int64_t>(), 0);
}

TEST(OpsCrossEntropy, NothingButIgnoredTargetsHasTheMeanNan) {
  const at::Tensor x = leaf(sample({4, 5}));
  const at::Tensor loss = cross_entropy(x, at::full({4}, -100, at::kLong));
  EXPECT_TRUE(std::isnan(loss.item<float>()));
  loss.backward();
  expect_equal(x.grad(), at::zeros({4, 5}), "gradient");
  EXPECT_EQ(cross_entropy(x, at::full({4}, -100, at::kLong), {.reduction = Reduction::kSum}).item<float>(), 0.0f);
}

// Sums of so few FP32 numbers are exact in double, so that their order does not matter.
TEST(OpsLossReduction, HasTheBitsOfTheCpu) {
  at::manual_seed(8);
  const at::Tensor x = sample({4, 9, 50}, 2.0), targets = targets_for({4, 9}, 50, 3);
  for (const Reduction reduction : kReductions) {
    for (const at::Tensor& weight : {at::Tensor(), at::rand({50}) + 0.5}) {
      const CrossEntropyOptions one{.reduction = reduction, .ignore_index = 3, .weight = weight};
      CrossEntropyOptions each = one;
      each.reduction = Reduction::kNone;
      const at::Tensor total = weight_of_targets(targets, 3, weight);
      expect_equal(reduced_losses(cross_entropy(x, targets, each), reduction, total), cross_entropy(x, targets, one),
                   std::string(name(reduction)));
    }
  }
}

TEST(OpsLossReduction, WeighsTargetsAsTheyCount) {
  const at::Tensor targets = at::tensor({4, -100, 0, 2, -100, 7, -3}, at::kLong);
  at::Tensor weight = at::tensor({1.0f, 2.0f, 4.0f, NAN, 8.0f});
  EXPECT_EQ(weight_of_targets(targets, -100, {}).item<double>(), 5);
  EXPECT_EQ(weight_of_targets(targets, -100, weight).item<double>(), 8 + 1 + 4 + 8 + 1);
  EXPECT_EQ(weight_of_targets(at::tensor({3, 1}, at::kLong), 3, weight).item<double>(), 2);
  EXPECT_EQ(weight_of_targets(at::empty({0}, at::kLong), -100, {}).item<double>(), 0);
  EXPECT_EQ(factor_of_mean(at::scalar_tensor(3.0, at::kDouble)).item<float>(), static_cast<float>(1 / 3.0));
}

struct Head {
  at::Tensor hidden, weight;
  Head(at::IntArrayRef sizes, int64_t vocabulary)
      : hidden(sample(sizes)), weight(sample({vocabulary, sizes.back()}, 0.3)) {}
};

// {loss, gradients} through the fused op, or through the logits in FP64 of operands rounded to dtype.
std::vector<at::Tensor> fused(const Head& head, const at::Tensor& targets, const LinearCrossEntropyOptions& options,
                              at::ScalarType dtype, at::ScalarType parameters = at::kFloat) {
  const at::Tensor hidden = leaf(head.hidden, parameters), weight = leaf(head.weight, parameters);
  const at::Tensor loss = linear_cross_entropy(hidden, weight, targets, options, dtype);
  loss.backward();
  return {loss.detach(), hidden.grad(), weight.grad()};
}

std::vector<at::Tensor> exact(const Head& head, const at::Tensor& targets, const LinearCrossEntropyOptions& options) {
  const at::Tensor hidden = leaf(head.hidden, at::kDouble), weight = leaf(head.weight, at::kDouble);
  const at::Tensor loss = in_double(at::matmul(hidden, weight.t()), targets,
                                    {.reduction = options.reduction,
                                     .ignore_index = options.ignore_index,
                                     .label_smoothing = options.label_smoothing});
  loss.backward();
  return {loss.detach(), hidden.grad(), weight.grad()};
}

// `unit`: of the logits and of their gradient. An error d of every logit moves the loss by at most 2 d a row and p - q
// by at most 2 d p; both products sum such errors.
void expect_close(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& expected, const Head& head,
                  const at::Tensor& targets, const LinearCrossEntropyOptions& options, double unit) {
  const at::Tensor hidden = head.hidden.to(at::kDouble).flatten(0, -2), weight = head.weight.to(at::kDouble);
  const at::Tensor logits = at::matmul(hidden, weight.t());
  const auto terms = static_cast<double>(hidden.size(1) + hidden.size(0) + weight.size(0) + 64) * 0x1p-24;
  const at::Tensor product = at::matmul(hidden.abs(), weight.t().abs());
  const double error = (logits.abs() * unit + product * terms).max().item<double>();
  const at::Tensor counted = (targets.flatten() != options.ignore_index).to(at::kDouble).unsqueeze(1);
  const double rows = counted.sum().item<double>();
  const double factor = options.reduction == Reduction::kMean ? 1 / rows : 1.0;
  const at::Tensor p = logits.softmax(-1);
  const at::Tensor q = at::one_hot(targets.flatten().clamp(0), weight.size(0)).to(at::kDouble);
  const at::Tensor size = (p + q + 1.0 / static_cast<double>(weight.size(0))) * counted * factor;
  const at::Tensor grad_error = size * unit + (2 * error + terms) * size;
  const double loss_bound = (2 * error + terms * (1 + logits.abs().max().item<double>())) * rows * factor;
  expect_within(got[0], expected[0], at::full_like(expected[0], loss_bound), "loss");
  const auto rounded = [&](const at::Tensor& x, double bits) { return x.abs() * bits; };
  const at::Tensor hidden_bound =
      at::matmul(grad_error + size * terms, weight.abs()).view(head.hidden.sizes()) + rounded(expected[1], 2 * unit);
  expect_within(got[1], expected[1], hidden_bound, "grad_hidden");
  expect_within(got[2], expected[2],
                at::matmul((grad_error + size * terms).t(), hidden.abs()) + rounded(expected[2], 2 * unit),
                "grad_weight");
}

TEST(OpsLinearCrossEntropy, MatchesTheCompositionInDouble) {
  at::manual_seed(4);
  const Head head({2, 19, 24}, 67);
  const at::Tensor targets = targets_for({2, 19}, 67, 3);
  for (const Reduction reduction : {Reduction::kMean, Reduction::kSum}) {
    for (const double smoothing : {0.0, 0.25}) {
      const LinearCrossEntropyOptions options{.reduction = reduction, .ignore_index = 3, .label_smoothing = smoothing};
      const std::vector<at::Tensor> expected = exact(head, targets, options);
      expect_close(fused(head, targets, options, at::kFloat), expected, head, targets, options, 0x1p-24);
      expect_close(fused(head, targets, options, at::kHalf), expected, head, targets, options, 0x1p-24);
      expect_close(fused(head, targets, options, at::kBFloat16), expected, head, targets, options, 0x1p-8);
      const std::vector<at::Tensor> narrow = fused(head, targets, options, at::kBFloat16, at::kBFloat16);
      EXPECT_EQ(narrow[1].scalar_type(), at::kBFloat16);
      EXPECT_EQ(narrow[2].scalar_type(), at::kBFloat16);
      expect_close(narrow, expected, head, targets, options, 0x1p-8);
    }
  }
}

TEST(OpsLinearCrossEntropy, ManyChunksGiveWhatOneGives) {
  at::manual_seed(5);
  constexpr int64_t kVocabulary = 300000;  // 111 rows of fp32 are 128 MiB
  ASSERT_EQ(cross_entropy_chunk_rows(121, kVocabulary, 4), 61);
  const Head head({121, 3}, kVocabulary);
  const at::Tensor targets = targets_for({121}, kVocabulary, -100);
  const LinearCrossEntropyOptions options;
  expect_close(fused(head, targets, options, at::kFloat), exact(head, targets, options), head, targets, options,
               0x1p-24);
}

TEST(OpsLinearCrossEntropy, ChunksAreEqualAndCoverTheRows) {
  EXPECT_EQ(cross_entropy_chunk_rows(4096, 50257, 2), 1024);  // 4 chunks, of at most 1,335 rows
  EXPECT_EQ(cross_entropy_chunk_rows(4096, 131072, 2, kHeldLogitsOnDevice), 2048);
  EXPECT_EQ(cross_entropy_chunk_rows(5, 256, 4), 5);
  EXPECT_EQ(cross_entropy_chunk_rows(0, 256, 4), 0);
  EXPECT_EQ(cross_entropy_chunk_rows(3, int64_t{1} << 40, 4), 1);
}

TEST(OpsLinearCrossEntropy, ComputesOnlyTheGradientsThatAreWanted) {
  at::manual_seed(6);
  const Head head({7, 8}, 20);
  const at::Tensor targets = targets_for({7}, 20, -100);
  const std::vector<at::Tensor> both = fused(head, targets, {}, at::kFloat);
  const at::Tensor hidden = leaf(head.hidden), weight = leaf(head.weight);
  const at::Tensor first = linear_cross_entropy(hidden, head.weight, targets, {}, at::kFloat);
  first.backward(at::scalar_tensor(2.0f));
  expect_equal(hidden.grad(), both[1] * 2, "grad_hidden");
  linear_cross_entropy(head.hidden, weight, targets, {}, at::kFloat).backward(at::scalar_tensor(0.5f));
  expect_equal(weight.grad(), both[2] * 0.5, "grad_weight");
  const at::NoGradGuard no_grad;
  const at::Tensor silent = linear_cross_entropy(hidden, weight, targets, {}, at::kFloat);
  EXPECT_FALSE(silent.requires_grad());
  expect_equal(silent, both[0], "loss");
}

TEST(OpsLinearCrossEntropy, BitsDoNotDependOnThreads) {
  at::manual_seed(7);
  const Head head({130, 40}, 1001);
  const at::Tensor targets = targets_for({130}, 1001, -100);
  for (const at::ScalarType dtype : kDtypes) {
    const std::vector<at::Tensor> one = [&] {
      const testing::ScopedThreads scope(1);
      return fused(head, targets, {}, dtype);
    }();
    for (const int threads : {2, 3}) {
      const testing::ScopedThreads scope(threads);
      const std::vector<at::Tensor> many = fused(head, targets, {}, dtype);
      for (size_t i = 0; i < one.size(); ++i) expect_equal(many[i], one[i], std::to_string(threads) + " threads");
    }
  }
}

TEST(OpsLinearCrossEntropy, RowsThatAreIgnoredAreNotMultiplied) {
  at::manual_seed(9);
  const Head head({3, 41, 24}, 67);
  const at::Tensor targets = at::randint(67, {3, 41}, at::kLong);
  targets[1].fill_(-100);
  targets.select(1, 5).fill_(-100);
  const at::Tensor counts = targets != -100, counting = counts.flatten().nonzero().flatten();
  Head alone = head, all = head;
  alone.hidden = head.hidden.flatten(0, 1).index_select(0, counting);
  all.hidden = head.hidden.masked_fill(~counts.unsqueeze(-1), NAN);  // any product with such a row would be NaN
  for (const at::ScalarType dtype : kDtypes) {
    const std::vector<at::Tensor> expected = fused(alone, targets.flatten().index_select(0, counting), {}, dtype);
    const std::vector<at::Tensor> got = fused(all, targets, {}, dtype);
    const std::string what = c10::toString(dtype);
    expect_equal(got[0], expected[0], what + " loss");
    expect_equal(got[1].masked_select(counts.unsqueeze(-1)), expected[1].flatten(), what + " grad_hidden");
    expect_equal(got[1].masked_select(~counts.unsqueeze(-1)), at::zeros({(123 - counting.numel()) * 24}),
                 what + " grad_hidden of ignored rows");
    expect_equal(got[2], expected[2], what + " grad_weight");
  }
}

TEST(OpsLinearCrossEntropy, NothingButIgnoredTargetsHasTheMeanNan) {
  const std::vector<at::Tensor> got = fused(Head({4, 3}, 5), at::full({4}, -100, at::kLong), {}, at::kFloat);
  EXPECT_TRUE(std::isnan(got[0].item<float>()));
  expect_equal(got[1], at::zeros({4, 3}), "grad_hidden");
  expect_equal(got[2], at::zeros({5, 3}), "grad_weight");
}

TEST(OpsCrossEntropy, EmptyInputsAndNonFiniteLogits) {
  EXPECT_EQ(cross_entropy(sample({0, 5}), at::empty({0}, at::kLong), {.reduction = Reduction::kSum}).item<float>(), 0);
  const at::Tensor weight = leaf(sample({5, 4}));
  linear_cross_entropy(sample({0, 4}), weight, at::empty({0}, at::kLong), {.reduction = Reduction::kSum}, at::kFloat)
      .backward();
  expect_equal(weight.grad(), at::zeros({5, 4}), "grad_weight of no rows");
  const at::Tensor x = sample({3, 5});
  x[1][2] = INFINITY;
  EXPECT_FALSE(std::isfinite(cross_entropy(x, at::zeros({3}, at::kLong)).item<float>()));
}

TEST(OpsCrossEntropy, ErrorsSayWhatWasExpectedAndWhatCame) {
  const at::Tensor x = sample({4, 6}), targets = at::zeros({4}, at::kLong), weight = sample({9, 6});
  const auto expect_error = [](auto call) {
    try {
      call();
      ADD_FAILURE() << "expected an error";
    } catch (const c10::Error& error) {
      const std::string text = error.what_without_backtrace();
      EXPECT_NE(text.find("cross_entropy: expected"), std::string::npos) << text;
      EXPECT_NE(text.find("got"), std::string::npos) << text;
    }
  };
  expect_error([&] { cross_entropy(x.to(at::kDouble), targets); });
  expect_error([&] { cross_entropy(x, targets.to(at::kInt)); });
  expect_error([&] { cross_entropy(x, at::zeros({3}, at::kLong)); });
  expect_error([&] { cross_entropy(x, targets + 6); });
  expect_error([&] { cross_entropy(x, targets - 1); });
  expect_error([&] { cross_entropy(at::zeros({4, 0}), targets); });
  expect_error([&] { cross_entropy(x, targets, {.label_smoothing = 1.5}); });
  expect_error([&] { cross_entropy(x, targets, {.weight = at::ones({5})}); });
  expect_error([&] { cross_entropy(x, targets, {.label_smoothing = 0.1, .weight = at::ones({6})}); });
  expect_error([&] { parse_reduction("average", "cross_entropy"); });
  expect_error([&] { linear_cross_entropy(x, sample({9, 5}), targets, {}, at::kFloat); });
  expect_error([&] { linear_cross_entropy(x, weight, targets, {.reduction = Reduction::kNone}, at::kFloat); });
  expect_error([&] { linear_cross_entropy(x, weight, targets, {}, at::kDouble); });
}

}  // namespace
}  // namespace plimsoll::ops
