// LayerNorm, RmsNorm, LayerNormLinear and LayerNormMlp against the same from torch's ops.
#include <ATen/autocast_mode.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/rms_norm.h>
#include <torch/nn/functional/linear.h>
#include <torch/nn/functional/normalization.h>

#include "plimsoll/amp/fp8_autocast.h"
#include "plimsoll/nn/layer_norm.h"
#include "plimsoll/nn/layer_norm_linear.h"
#include "plimsoll/nn/layer_norm_mlp.h"
#include "plimsoll/nn/linear.h"
#include "plimsoll/nn/precision.h"
#include "plimsoll/nn/testing.h"
#include "plimsoll/ops/activation/activation_composed.h"

namespace plimsoll::nn {
namespace {

namespace F = torch::nn::functional;
using testing::Tensors;

constexpr double kEpsilon = 1e-5;

at::Tensor plain_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  if (bias.defined()) return at::layer_norm(x, {x.size(-1)}, weight, bias, kEpsilon);
  return at::rms_norm(x, {x.size(-1)}, weight, kEpsilon);
}

TEST(NnNorm, MatchesTorch) {
  torch::manual_seed(1);
  const at::Tensor x = torch::randn({3, 5, 33}) * 2 + 1, seed = torch::randn({3, 5, 33});
  for (const bool zero_centered : {false, true}) {
    LayerNorm layer_norm(33, LayerNormOptions{.zero_centered_gamma = zero_centered});
    RmsNorm rms_norm(33, LayerNormOptions{.zero_centered_gamma = zero_centered});
    EXPECT_EQ(layer_norm->parameters()[0].sum().item<float>(), zero_centered ? 0 : 33);
    for (Norm* norm : {static_cast<Norm*>(&layer_norm), static_cast<Norm*>(&rms_norm)}) {
      testing::randomize(**norm);
      const auto plain = [&](const Tensors& t) {
        return plain_norm(t[0], zero_centered ? t[1] + 1 : t[1], t.size() > 2 ? t[2] : at::Tensor());
      };
      const Tensors ours = testing::run_module(
          **norm, [&](const at::Tensor& in) { return (*norm)->forward(in); }, x, seed);
      testing::expect_matches(ours, plain, testing::with_parameters(x, **norm), seed);
    }
  }
}

// As models with QK norm do, before the rotary turn.
TEST(NnNorm, HeadsInsideAProjectionAreNormalizedLikeRowsOfTheirOwn) {
  torch::manual_seed(2);
  for (const bool zero_centered : {false, true}) {
    RmsNorm norm(24, LayerNormOptions{.zero_centered_gamma = zero_centered});
    testing::randomize(*norm);
    const at::Tensor packed = torch::randn({2, 7, 6, 24}).requires_grad_();
    const at::Tensor rows = packed.detach().narrow(2, 4, 1).contiguous().requires_grad_();
    const at::Tensor got = norm->forward(packed.narrow(2, 4, 1)), expected = norm->forward(rows);
    EXPECT_TRUE(at::equal(got, expected));
    const at::Tensor seed = torch::randn(got.sizes());
    got.backward(seed);
    expected.backward(seed);
    EXPECT_TRUE(at::equal(packed.grad().narrow(2, 4, 1), rows.grad()));
  }
}

TEST(NnNorm, ReturnsTheDtypeOfTheInputOrOfTheScope) {
  LayerNorm norm(8);
  const at::Tensor x = torch::randn({2, 8});
  EXPECT_EQ(norm->forward(x).scalar_type(), at::kFloat);
  EXPECT_EQ(norm->forward(x.to(at::kBFloat16)).scalar_type(), at::kBFloat16);
  const amp::Fp8Autocast scope({.recipe = recipe::by_name("fp8")});
  EXPECT_EQ(norm->forward(x).scalar_type(), at::kBFloat16);
}

TEST(NnLayerNormLinear, MatchesTorchWithoutAScope) {
  torch::manual_seed(2);
  const at::Tensor x = torch::randn({4, 3, 24}), seed = torch::randn({4, 3, 17});
  for (const Normalization kind : {Normalization::kLayerNorm, Normalization::kRmsNorm}) {
    LayerNormLinear layer(24, 17, LayerNormLinearOptions{.normalization = kind});
    testing::randomize(*layer);
    const bool has_bias = kind == Normalization::kLayerNorm;
    const auto plain = [&](const Tensors& t) {
      const size_t next = has_bias ? 3 : 2;
      return F::linear(plain_norm(t[0], t[1], has_bias ? t[2] : at::Tensor()), t[next], t[next + 1]);
    };
    const Tensors ours = testing::run_module(
        *layer, [&](const at::Tensor& in) { return layer->forward(in); }, x, seed);
    testing::expect_matches(ours, plain, testing::with_parameters(x, *layer), seed);
  }
}

TEST(NnLayerNormLinear, ParametersHaveTheKnownNamesAndOrder) {
  EXPECT_EQ(LayerNormLinear(4, 4)->named_parameters().keys(),
            (std::vector<std::string>{"layer_norm_weight", "layer_norm_bias", "weight", "bias"}));
}

TEST(NnLayerNormLinear, ResidualIsAddedBeforeTheNorm) {
  torch::manual_seed(3);
  LayerNormLinear layer(16, 8);
  const at::Tensor x = torch::randn({5, 16}), residual = torch::randn({5, 16});
  for (const char* name : {"fp32", "fp8"}) {
    const amp::Fp8Autocast scope({.recipe = recipe::by_name(name)});
    const at::Tensor sum = x + residual;
    const ops::NormOutput ours = layer->forward(x, residual, std::nullopt);
    EXPECT_TRUE(torch::equal(ours.sum, sum));
    EXPECT_TRUE(torch::equal(ours.output, layer->forward(sum)));
  }
}

TEST(NnLayerNormMlp, MatchesTorchForEveryActivation) {
  torch::manual_seed(4);
  const at::Tensor x = torch::randn({4, 3, 24}), seed = torch::randn({4, 3, 24});
  for (const kernels::ActivationInfo& activation : kernels::kActivations) {
    SCOPED_TRACE(activation.name);
    LayerNormMlp mlp(24, 40, LayerNormMlpOptions{.activation = std::string(activation.name)});
    testing::randomize(*mlp);
    const auto plain = [&](const Tensors& t) {
      const at::Tensor inner = F::linear(plain_norm(t[0], t[1], t[2]), t[3], t[4]);
      return F::linear(ops::composed_activation(inner, activation.kind), t[5], t[6]);
    };
    const Tensors ours = testing::run_module(
        *mlp, [&](const at::Tensor& in) { return mlp->forward(in); }, x, seed);
    testing::expect_matches(ours, plain, testing::with_parameters(x, *mlp), seed);
  }
}

TEST(NnLayerNormMlp, ParametersAndBuffersHaveTheKnownNames) {
  LayerNormMlp mlp(4, 8);
  EXPECT_EQ(mlp->named_parameters().keys(),
            (std::vector<std::string>{"layer_norm_weight", "layer_norm_bias", "fc1_weight", "fc1_bias", "fc2_weight",
                                      "fc2_bias"}));
  EXPECT_TRUE(mlp->named_buffers().contains("fc1_input_scale"));
  EXPECT_TRUE(mlp->named_buffers().contains("fc2_grad_output_amax_history"));
  EXPECT_THROW(LayerNormMlp(4, 8, LayerNormMlpOptions{.activation = "gleu"}), std::exception);
}

TEST(NnLayerNormMlp, ItsScopeIsThatOfLayersOneAfterAnother) {
  torch::manual_seed(5);
  LayerNormMlp mlp(32, 64);
  const at::Tensor x = torch::randn({6, 32}).to(at::kBFloat16);
  for (const char* name : {"bf16", "fp8", "fp8-current", "fp8-block", "mxfp8", "nvfp4", "mxfp4"}) {
    SCOPED_TRACE(name);
    LayerNormLinear fc1(32, 64);
    Linear fc2(64, 32);
    const at::NoGradGuard no_grad;
    const auto given = mlp->named_parameters();
    for (auto& parameter : fc1->named_parameters()) {
      const std::string& key = parameter.key();
      parameter.value().copy_(given[key.starts_with("layer_norm") ? key : "fc1_" + key]);
    }
    for (auto& parameter : fc2->named_parameters()) parameter.value().copy_(given["fc2_" + parameter.key()]);
    const amp::Fp8Autocast scope({.recipe = recipe::by_name(name)});
    const at::Tensor together = mlp->forward(x);
    EXPECT_EQ(together.scalar_type(), at::kBFloat16);
    EXPECT_TRUE(torch::equal(
        together, fc2->forward(ops::activation(fc1->forward(x).to(at::kFloat), kernels::Activation::kGelu))));
  }
}

TEST(NnPrecision, ScopeDtypeIsThatOfTheDevicesAutocast) {
  const at::ScalarType before = at::autocast::get_autocast_dtype(at::kCUDA);
  at::autocast::set_autocast_enabled(at::kCUDA, true);
  at::autocast::set_autocast_dtype(at::kCUDA, at::kBFloat16);
  EXPECT_EQ(scope_dtype(at::kCUDA), at::kBFloat16);
  EXPECT_EQ(scope_dtype(at::kCPU), std::nullopt);
  {
    const amp::Fp8Autocast scope({.recipe = recipe::by_name("fp16")});
    EXPECT_EQ(scope_dtype(at::kCUDA), at::kHalf);
  }
  at::autocast::set_autocast_enabled(at::kCUDA, false);
  at::autocast::set_autocast_dtype(at::kCUDA, before);
}

}  // namespace
}  // namespace plimsoll::nn
