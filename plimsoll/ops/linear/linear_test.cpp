#include "plimsoll/ops/linear/linear.h"

#include <c10/util/Exception.h>
#include <torch/csrc/autograd/autograd.h>

#include "plimsoll/ops/memory/saved_bytes.h"
#include "plimsoll/ops/tensor/dtype.h"
#include "plimsoll/ops/testing.h"
#include "plimsoll/watch/session.h"

namespace plimsoll::ops {
namespace {

using format::Format;
using recipe::GemmKind;
using recipe::Role;
using testing::every_recipe;
using testing::expect_equal;
using testing::leaf;
using testing::recipes_of_eight_bits;
using testing::sample;
using testing::scaling_of;
using testing::shared;

struct Layer {
  at::Tensor x, weight, bias, grad;
};

Layer layer(int64_t tokens, int64_t in, int64_t out) {
  return {sample({tokens, in}), sample({out, in}, 0.1), sample({out}), sample({tokens, out}, 1e-3)};
}

struct Result {
  at::Tensor output, x, weight, bias;  // gradients
};

Result run(const Layer& values, const LinearScaling& scaling, at::ScalarType dtype = at::kFloat) {
  const at::Tensor x = leaf(values.x, dtype), weight = leaf(values.weight), bias = leaf(values.bias);
  const at::Tensor output = linear(x, weight, bias, scaling);
  torch::autograd::backward({output}, {values.grad.to(output.scalar_type())});
  return {output.detach(), x.grad(), weight.grad(), bias.grad()};
}

Result run_in_double(const Layer& values) {
  const at::Tensor x = leaf(values.x, at::kDouble), weight = leaf(values.weight, at::kDouble);
  const at::Tensor bias = leaf(values.bias, at::kDouble);
  const at::Tensor output = at::linear(x, weight, bias);
  torch::autograd::backward({output}, {values.grad.to(at::kDouble)});
  return {output.detach(), x.grad(), weight.grad(), bias.grad()};
}

void expect_near_double(const Layer& values, const recipe::Recipe& recipe, const Result& got, at::ScalarType x_dtype) {
  const Result exact = run_in_double(values);
  const auto format = [&](Role role, GemmKind gemm) { return recipe.operand(role, gemm).format; };
  const std::string name(recipe.name());
  testing::expect_within(
      got.output, exact.output,
      testing::error_bound({values.x, values.weight, format(Role::kInput, GemmKind::kOutput),
                            format(Role::kWeight, GemmKind::kOutput), recipe.high_precision_format()},
                           exact.output),
      name + " output");
  testing::expect_within(
      got.x, exact.x,
      testing::error_bound({values.grad, values.weight.t(), format(Role::kGradOutput, GemmKind::kGradInput),
                            format(Role::kWeight, GemmKind::kGradInput), format_of(x_dtype, "test")},
                           exact.x),
      name + " grad_input");
  testing::expect_within(
      got.weight, exact.weight,
      testing::error_bound({values.grad.t(), values.x.t(), format(Role::kGradOutput, GemmKind::kGradWeight),
                            format(Role::kInput, GemmKind::kGradWeight), Format::kFp32},
                           exact.weight),
      name + " grad_weight");
  const at::Tensor sum = values.grad.to(at::kDouble).abs().sum(0);
  const double roundings = static_cast<double>(values.grad.size(0)) * 0x1p-24;
  testing::expect_within(got.bias, exact.bias, sum * roundings + exact.bias.abs() * 0x1p-23, name + " dbias");
}

TEST(Linear, OutputAndGradientsOfRecipesOfEightBitsAreNearDouble) {
  at::manual_seed(1);
  for (const auto& [tokens, in, out] : {std::array<int64_t, 3>{1, 1, 1}, {5, 33, 17}, {130, 257, 65}}) {
    const Layer values = layer(tokens, in, out);
    for (const SharedRecipe& recipe : recipes_of_eight_bits()) {
      for (at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
        const Result got = run(values, scaling_of(recipe), dtype);
        EXPECT_EQ(got.output.scalar_type(), dtype_of(recipe->high_precision_format()));
        EXPECT_EQ(got.x.scalar_type(), dtype);
        EXPECT_EQ(got.weight.scalar_type(), at::kFloat);
        expect_near_double(values, *recipe, got, dtype);
      }
    }
  }
}

// Each operand's scale is far from 1, their product is not.
TEST(Linear, ValuesBeyond1e35GiveWhatDoubleGives) {
  at::manual_seed(1);
  for (const auto& [x, weight] : {std::array<double, 2>{1e36, 1e-3}, {1e-3, 1e36}}) {
    Layer values = layer(40, 72, 36);
    values.x.mul_(x);
    values.weight.mul_(weight);
    values.bias.mul_(x * weight);
    for (const SharedRecipe& recipe : recipes_of_eight_bits()) {
      if (recipe->high_precision_format() == Format::kFp16) continue;
      SCOPED_TRACE(std::to_string(x) + " times " + std::to_string(weight));
      expect_near_double(values, *recipe, run(values, scaling_of(recipe)), at::kFloat);
    }
  }
}

TEST(Linear, AllEightOverridesWork) {
  at::manual_seed(2);
  const Layer values = layer(40, 48, 36);
  for (int bits = 0; bits < 8; ++bits) {
    const recipe::LinearOverride override_linear_precision{(bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0};
    for (const SharedRecipe& recipe :
         {shared(recipe::DelayedScaling{.override_linear_precision = override_linear_precision}),
          shared(recipe::CurrentScaling{.override_linear_precision = override_linear_precision}),
          shared(recipe::BlockScaling{.override_linear_precision = override_linear_precision}),
          shared(recipe::Mxfp8{.override_linear_precision = override_linear_precision})}) {
      const LinearScaling scaling = scaling_of(recipe);
      expect_near_double(values, *recipe, run(values, scaling), at::kFloat);
      scaling.step->end_forward();
      const bool delayed = recipe->delayed() != nullptr;
      // A slot fills if any product reads its codes.
      EXPECT_EQ(scaling.state->input.scale.item<float>() > 0,
                delayed && !(override_linear_precision.output && override_linear_precision.grad_weight));
      EXPECT_EQ(scaling.state->weight.scale.item<float>() > 0,
                delayed && !(override_linear_precision.output && override_linear_precision.grad_input));
      EXPECT_EQ(scaling.state->grad_output.scale.item<float>() > 0,
                delayed && !(override_linear_precision.grad_input && override_linear_precision.grad_weight));
    }
  }
}

TEST(Linear, BitsDoNotDependOnThreads) {
  at::manual_seed(3);
  const Layer values = layer(300, 200, 150);
  for (const SharedRecipe& recipe : every_recipe()) {
    const auto with_threads = [&](int count) {
      const testing::ScopedThreads threads(count);
      return run(values, scaling_of(recipe));
    };
    const Result one = with_threads(1), two = with_threads(2);
    const std::string name(recipe->name());
    expect_equal(one.output, two.output, name + " output");
    expect_equal(one.x, two.x, name + " grad_input");
    expect_equal(one.weight, two.weight, name + " grad_weight");
    expect_equal(one.bias, two.bias, name + " dbias");
  }
}

TEST(Linear, TakesAnyRankStrideAndNoTokens) {
  at::manual_seed(4);
  const at::Tensor weight = leaf(sample({6, 8})), bias = leaf(sample({6}));
  for (const SharedRecipe& recipe : every_recipe()) {
    const std::string name(recipe->name());
    const auto apply = [&](const at::Tensor& x) { return linear(x, weight, bias, scaling_of(recipe)); };
    const at::Tensor x = sample({8, 5, 3}).permute({2, 1, 0});  // [3, 5, 8]
    const at::Tensor dense = apply(x.contiguous());
    expect_equal(apply(x), dense, name);
    expect_equal(apply(x.reshape({15, 8})).view({3, 5, 6}), dense, name);
    EXPECT_EQ(apply(sample({8})).sizes(), at::IntArrayRef({6}));

    const at::Tensor empty = at::empty({2, 0, 8}).requires_grad_(true);
    weight.mutable_grad() = at::Tensor();
    torch::autograd::backward({apply(empty).sum()});
    EXPECT_EQ(empty.grad().sizes(), empty.sizes());
    EXPECT_EQ(weight.grad().abs().max().item<float>(), 0.0f) << name;
  }
}

TEST(Linear, OnlyWhatRequiresGradGetsOne) {
  at::manual_seed(5);
  const Layer values = layer(9, 10, 11);
  for (const SharedRecipe& recipe : every_recipe()) {
    const Result whole = run(values, scaling_of(recipe));
    for (int bits = 1; bits < 8; ++bits) {
      const at::Tensor x = values.x.clone().requires_grad_((bits & 1) != 0);
      const at::Tensor weight = values.weight.clone().requires_grad_((bits & 2) != 0);
      const at::Tensor bias = values.bias.clone().requires_grad_((bits & 4) != 0);
      const at::Tensor output = linear(x, weight, bias, scaling_of(recipe));
      torch::autograd::backward({output}, {values.grad.to(output.scalar_type())});
      const std::string name = std::string(recipe->name()) + " " + std::to_string(bits);
      expect_equal(x.grad(), (bits & 1) != 0 ? whole.x : at::Tensor(), name);
      expect_equal(weight.grad(), (bits & 2) != 0 ? whole.weight : at::Tensor(), name);
      expect_equal(bias.grad(), (bits & 4) != 0 ? whole.bias : at::Tensor(), name);
    }
    const at::Tensor weight = leaf(values.weight);
    const at::Tensor output = linear(values.x, weight, {}, scaling_of(recipe));
    torch::autograd::backward({output}, {values.grad.to(output.scalar_type())});
    expect_equal(weight.grad(), whole.weight, "no bias");
  }
}

TEST(Linear, WithoutARecipeComputesInTheDtypeOfTheWeight) {
  const Layer values = layer(4, 5, 6);
  EXPECT_EQ(linear(values.x, values.weight, values.bias, {}).scalar_type(), at::kFloat);
  EXPECT_EQ(linear(values.x, values.weight.to(at::kBFloat16), {}, {}).scalar_type(), at::kBFloat16);
}

TEST(Linear, LaterMicrobatchesReadTheKeptWeight) {
  at::manual_seed(6);
  const Layer values = layer(12, 32, 20);
  for (const SharedRecipe& recipe : every_recipe()) {
    const at::Tensor weight = leaf(values.weight);
    LinearScaling scaling = scaling_of(recipe);
    const at::Tensor each_time = linear(values.x, weight, values.bias, scaling);
    scaling.is_first_microbatch = false;
    EXPECT_THROW(linear(values.x, weight, values.bias, scaling), c10::Error);
    scaling.is_first_microbatch = true;
    expect_equal(linear(values.x, weight, values.bias, scaling), each_time, "first");
    scaling.is_first_microbatch = false;
    expect_equal(linear(values.x, weight, values.bias, scaling), each_time, "later");
    {
      const at::NoGradGuard no_grad;
      weight.mul_(2);
    }
    EXPECT_THROW(linear(values.x, weight, values.bias, scaling), c10::Error);
    scaling.is_first_microbatch = true;
    linear(values.x, weight, values.bias, scaling);
    scaling.is_first_microbatch = false;
    scaling.recipe =
        shared(recipe::HighPrecision{recipe->high_precision_format() == Format::kFp16 ? Format::kFp32 : Format::kFp16});
    EXPECT_THROW(linear(values.x, weight, values.bias, scaling), c10::Error);
  }
}

TEST(Linear, AnInfiniteGradientIsReportedAndNeverReachesTheHistory) {
  at::manual_seed(7);
  Layer values = layer(8, 16, 16);
  const LinearScaling scaling = scaling_of(shared(recipe::DelayedScaling{}));
  scaling.state->name = "layer";
  run(values, scaling);
  const float scale = scaling.state->grad_output.scale.item<float>();
  EXPECT_GT(scale, 0);
  values.grad[3][5] = INFINITY;
  const watch::Session session;
  const Result got = run(values, scaling);
  EXPECT_FALSE(at::isfinite(got.weight).all().item<bool>());
  EXPECT_TRUE(at::isfinite(scaling.state->grad_output.amax_history).all().item<bool>());
  EXPECT_EQ(scaling.state->grad_output.scale.item<float>(), scale);
  const auto bad = session.slots().non_finite();
  ASSERT_FALSE(bad.empty());
  EXPECT_EQ(bad.front().name, "layer/grad_output");
}

TEST(Linear, SavesTheCodesOfTheInput) {
  const Layer values = layer(64, 96, 32);
  const at::Tensor x = leaf(values.x), weight = leaf(values.weight), bias = leaf(values.bias);
  const auto saved = [&](const char* name) {
    const SavedBytesCounter counter({weight, bias});
    const at::Tensor output = linear(x, weight, bias, scaling_of(shared(recipe::by_name(name))));
    return counter.bytes();
  };
  const int64_t elements = x.numel() + weight.numel();  // the codes of the weight are a copy too
  const int64_t two_scales = 2 * 4;
  EXPECT_EQ(saved("fp8"), elements + two_scales);
  EXPECT_EQ(saved("fp8-current"), elements + two_scales);
  EXPECT_EQ(saved("mxfp8"), elements + elements / 32);
  EXPECT_EQ(saved("bf16"), 2 * elements);
  const int64_t squares = weight.numel() / 256;
  EXPECT_EQ(saved("nvfp4"), elements / 2 + x.numel() / 16 + squares + two_scales);
  EXPECT_EQ(saved("mxfp4"), elements / 2 + elements / 32);
}

TEST(Linear, RefusesWhatDoesNotFit) {
  const Layer values = layer(4, 5, 6);
  EXPECT_THROW(linear(values.x, values.weight.t(), values.bias, {}), c10::Error);
  EXPECT_THROW(linear(values.x, values.weight, values.x, {}), c10::Error);
  EXPECT_THROW(linear(values.x.to(at::kDouble), values.weight, values.bias, {}), c10::Error);
  EXPECT_THROW(linear(values.x.to(at::kMeta), values.weight, values.bias, {}), c10::Error);
  EXPECT_THROW(linear(at::scalar_tensor(1.0f), values.weight, values.bias, {}), c10::Error);
  EXPECT_THROW(linear(values.x, values.weight, values.bias, {.recipe = shared(recipe::DelayedScaling{})}), c10::Error);
  const at::Tensor x = leaf(values.x);
  const at::Tensor output = linear(x, values.weight, values.bias, {});
  EXPECT_THROW(torch::autograd::grad({output.sum()}, {x}, {}, true, true), c10::Error);
}

}  // namespace
}  // namespace plimsoll::ops
