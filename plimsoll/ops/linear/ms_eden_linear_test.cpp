// Linear layers under MS-EDEN as a distribution over draws, and what their random numbers have to keep apart.
#include <torch/csrc/autograd/autograd.h>

#include "plimsoll/ops/linear/linear.h"
#include "plimsoll/ops/tensor/quantize_fp4.h"
#include "plimsoll/ops/testing.h"

namespace plimsoll::ops {
namespace {

using recipe::GemmKind;
using recipe::Role;
using testing::expect_equal;
using testing::leaf;
using testing::sample;
using testing::shared;

SharedRecipe wide_ms_eden() {
  return shared(recipe::Nvfp4Scaling{.ms_eden = true, .high_precision_format = format::Format::kFp32});
}

struct EdenLayer {
  at::Tensor x, weight, grad;
};

struct EdenGradients {
  at::Tensor x, weight;
};

EdenGradients gradients_of(const EdenLayer& layer, LinearScaling scaling, uint64_t seed) {
  scaling.seed = seed;
  const at::Tensor x = leaf(layer.x), weight = leaf(layer.weight);
  torch::autograd::backward({linear(x, weight, {}, scaling)}, {layer.grad});
  return {x.grad(), weight.grad()};
}

struct EdenDraws {
  at::Tensor sum, squares;
  double count = 0;

  void add(const at::Tensor& draw) {
    const at::Tensor x = draw.to(at::kDouble);
    sum = count == 0 ? x.clone() : sum + x;
    squares = count == 0 ? x * x : squares + x * x;
    ++count;
  }
  void expect_mean(const at::Tensor& exact, const at::Tensor& rounding, const char* what) const {
    const at::Tensor mean = sum / count;
    const at::Tensor deviation = ((squares / count - mean * mean).clamp_min(0) / count).sqrt();
    EXPECT_GT(deviation.min().item<double>(), 0) << what;
    const at::Tensor bound = 5 * deviation + rounding;
    EXPECT_TRUE(((mean - exact).abs() <= bound).all().item<bool>())
        << what << " " << ((mean - exact).abs() / bound).max().item<double>();
  }
};

TEST(MsEdenLinear, MeanOfBothGradientsOverSeedsIsThatOfTheirProducts) {
  at::manual_seed(6);
  constexpr int64_t kTokens = 192, kIn = 12, kOut = 100;  // sums of one group and a half, and of a part of one
  const EdenLayer layer = {sample({kTokens, kIn}), sample({kOut, kIn}, 0.1), sample({kTokens, kOut}, 1e-3)};
  EdenDraws x, weight;
  for (uint64_t seed = 0; seed < 4000; ++seed) {
    const EdenGradients draw = gradients_of(layer, {.recipe = wide_ms_eden()}, seed);
    x.add(draw.x);
    weight.add(draw.weight);
  }
  const auto expect_mean = [](const EdenDraws& draws, const at::Tensor& a, const at::Tensor& b, const char* what) {
    const at::Tensor wide_a = a.to(at::kDouble), wide_b = b.to(at::kDouble);
    // Eleven FP32 roundings of a rotated element, its scales and the correction, of either operand, whose length its
    // elements share; 2^-20: a 2^-17th, by which the 16 bits err, of the distance of two scales, an eighth of them.
    const at::Tensor lengths = at::outer(wide_a.square().sum(1).sqrt(), wide_b.square().sum(1).sqrt());
    draws.expect_mean(at::matmul(wide_a, wide_b.t()), lengths * (2 * 11 * 0x1p-24 + 2 * 0x1p-20), what);
  };
  expect_mean(x, layer.grad, layer.weight.t(), "grad_input");
  expect_mean(weight, layer.grad.t(), layer.x.t(), "grad_weight");
}

TEST(MsEdenLinear, OperandsOfAProductHaveOneRotationAndRoundingsOfTheirOwn) {
  at::manual_seed(7);
  const at::Tensor x = sample({256, 256});
  const recipe::Recipe recipe = recipe::by_name("ms-eden");
  const recipe::OperandRecipe rows = recipe.stored_operand(Role::kGradOutput, GemmKind::kGradInput);
  const recipe::OperandRecipe turned = recipe.stored_operand(Role::kGradOutput, GemmKind::kGradWeight);
  std::vector<ScaledTensor> made;
  for (const Role role : {Role::kGradOutput, Role::kInput, Role::kWeight}) {
    const QuantizedFp4 codes = quantize_fp4(x, {.role = role, .rows = rows, .turned = turned}, 9);
    const QuantizedFp4 of_transpose = quantize_fp4(x.t(), {.role = role, .turned = turned}, 9);
    made.insert(made.end(), {codes.rows, of_transpose.turned});
  }
  for (size_t i = 0; i < made.size(); ++i) {
    expect_equal(made[i].data, made[0].data, "codes of the same rotated values");
    for (size_t j = 0; j < i; ++j) EXPECT_FALSE(at::equal(made[i].block_scale, made[j].block_scale)) << i << " " << j;
  }
}

TEST(MsEdenLinear, LaterMicrobatchesTurnTheWeightWithTheirGradients) {
  at::manual_seed(8);
  const EdenLayer layer = {sample({40, 64}), sample({48, 64}), sample({40, 48})};
  const EdenGradients alone = gradients_of(layer, {.recipe = wide_ms_eden()}, 2);
  LinearScaling scaling{
      .recipe = wide_ms_eden(), .state = std::make_shared<LinearState>(), .is_first_microbatch = true};
  const at::Tensor weight = leaf(layer.weight);
  const auto run = [&](uint64_t seed) {
    scaling.seed = seed;
    const at::Tensor x = leaf(layer.x);
    weight.mutable_grad() = at::Tensor();
    torch::autograd::backward({linear(x, weight, {}, scaling)}, {layer.grad});
    return EdenGradients{x.grad(), weight.grad().clone()};
  };
  const EdenGradients first = run(1);
  scaling.is_first_microbatch = false;
  const EdenGradients later = run(2);
  EXPECT_FALSE(at::equal(first.x, later.x));
  expect_equal(later.x, alone.x, "grad_input");
  expect_equal(later.weight, alone.weight, "grad_weight");
}

TEST(MsEdenLinear, AnInfiniteGradientIsSeenInBothProducts) {
  at::manual_seed(9);
  EdenLayer layer = {sample({20, 32}), sample({24, 32}), sample({20, 24})};
  layer.grad[3][5] = std::numeric_limits<float>::infinity();
  const EdenGradients gradients = gradients_of(layer, {.recipe = wide_ms_eden()}, 1);
  EXPECT_TRUE(gradients.x.isnan().all().item<bool>()) << "one scale of the tensor";
  EXPECT_TRUE(gradients.weight.isnan().all().item<bool>());
}

TEST(MsEdenLinear, ZeroGradientsStayZero) {
  at::manual_seed(10);
  const EdenLayer layer = {sample({20, 32}), sample({24, 32}), at::zeros({20, 24})};
  const EdenGradients gradients = gradients_of(layer, {.recipe = wide_ms_eden()}, 1);
  EXPECT_TRUE(gradients.x.eq(0).all().item<bool>());
  EXPECT_TRUE(gradients.weight.eq(0).all().item<bool>());
}

}  // namespace
}  // namespace plimsoll::ops
