// Adapters in the layers that have products: with a frozen base, under recipes, and in clones.
#include "plimsoll/nn/lora.h"

#include <ATen/ops/equal.h>

#include <functional>

#include "plimsoll/amp/fp8_autocast.h"
#include "plimsoll/nn/held_codes.h"
#include "plimsoll/nn/layer_norm_linear.h"
#include "plimsoll/nn/layer_norm_mlp.h"
#include "plimsoll/nn/linear.h"
#include "plimsoll/nn/testing.h"
#include "plimsoll/ops/linear/low_rank.h"
#include "plimsoll/ops/memory/saved_bytes.h"
#include "plimsoll/ops/tensor/gemm.h"
#include "plimsoll/ops/tensor/quantize.h"
#include "plimsoll/watch/profile.h"

namespace plimsoll::nn {
namespace {

constexpr int64_t kTokens = 24, kIn = 40, kOut = 36;

// A layer with adapters of all its products, and how to run it.
struct AdaptedLayer {
  std::string name;
  std::shared_ptr<torch::nn::Module> module;
  ScaledLayer* layer;
  std::function<at::Tensor(const at::Tensor& x)> forward;

  void adapt(const LoraOptions& options) const {
    for (at::Tensor& parameter : module->parameters()) parameter.set_requires_grad(false);
    for (const auto& [prefix, in, out] : products) {
      layer->add_lora(prefix,
                      Lora(in, std::vector<LoraPart>{{"left", 0, out / 3}, {"right", out / 2, out / 2}}, options));
    }
  }
  std::vector<std::tuple<std::string, int64_t, int64_t>> products;
};

std::vector<AdaptedLayer> adapted_layers() {
  Linear linear(kIn, kOut);
  LayerNormLinear norm_linear(kIn, kOut);
  LayerNormMlp mlp(kIn, kOut, LayerNormMlpOptions{.normalization = Normalization::kRmsNorm, .activation = "swiglu"});
  return {{"Linear",
           linear.ptr(),
           linear.get(),
           [linear](const at::Tensor& x) mutable { return linear->forward(x); },
           {{"", kIn, kOut}}},
          {"LayerNormLinear",
           norm_linear.ptr(),
           norm_linear.get(),
           [norm_linear](const at::Tensor& x) mutable { return norm_linear->forward(x); },
           {{"", kIn, kOut}}},
          {"LayerNormMlp",
           mlp.ptr(),
           mlp.get(),
           [mlp](const at::Tensor& x) mutable { return mlp->forward(x); },
           {{"fc1", kIn, 2 * kOut}, {"fc2", kOut, kIn}}}};
}

void randomize_adapters(const torch::nn::Module& module) {
  const at::NoGradGuard no_grad;
  for (const auto& item : module.named_parameters()) {
    if (item.key().ends_with("_B")) at::Tensor(item.value()).normal_(0, 0.3);
  }
}

TEST(NnLora, AdaptersThatBeginChangeNoBit) {
  torch::manual_seed(1);
  const at::NoGradGuard no_grad;
  for (const char* name : {"fp32", "bf16", "fp16"}) {
    for (const AdaptedLayer& layer : adapted_layers()) {
      const amp::Fp8Autocast scope({.recipe = recipe::by_name(name)});
      const at::Tensor x = torch::randn({kTokens, kIn}), before = layer.forward(x);
      layer.adapt({.rank = 4});
      EXPECT_TRUE(at::equal(layer.forward(x), before)) << layer.name << ", " << name;
      randomize_adapters(*layer.module);
      EXPECT_FALSE(at::equal(layer.forward(x), before)) << layer.name << ", " << name;
    }
  }
}

TEST(NnLora, ALayerIsItsProductAndWhatAdaptersAdd) {
  torch::manual_seed(2);
  Linear linear(kIn, kOut);
  const at::Tensor x = torch::randn({2, kTokens, kIn}), base = linear->forward(x).detach();
  linear->add_lora("", Lora(kIn, std::vector<LoraPart>{{"some", 5, 20}}, LoraOptions{.rank = 9, .alpha = 6}));
  randomize_adapters(*linear);
  const auto parameters = linear->named_parameters();
  const at::Tensor &a = parameters["lora.some_A"], &b = parameters["lora.some_B"];
  EXPECT_TRUE(at::equal(linear->forward(x), ops::with_low_rank(x, {{a, b, 5}}, {.factor = 6.0 / 9},
                                                               [&](const at::Tensor&) { return base.clone(); })));
  EXPECT_DOUBLE_EQ((LoraOptions{.rank = 9, .alpha = 6, .rank_stabilized = true}.scaling()), 2);
  EXPECT_THROW(linear->add_lora("", Lora(kIn, std::vector<LoraPart>{{"more", 0, 3}}, LoraOptions{})), c10::Error);
}

TEST(NnLora, BeginsAsPeftDoes) {
  torch::manual_seed(3);
  const Lora lora(400, std::vector<LoraPart>{{"all", 0, 30}}, LoraOptions{.rank = 64});
  EXPECT_EQ(lora->b[0].abs().max().item<float>(), 0);
  // Kaiming uniform with a = sqrt(5): sqrt(6 / ((1 + 5) in)), which the largest of 25,600 draws all but reaches.
  EXPECT_LE(lora->a[0].abs().max().item<double>(), 1 / std::sqrt(400.0));
  EXPECT_GT(lora->a[0].abs().max().item<double>(), 0.999 / std::sqrt(400.0));
  EXPECT_THROW(Lora(4, std::vector<LoraPart>{}, LoraOptions{.rank = 0}), c10::ValueError);
  EXPECT_THROW(Lora(4, std::vector<LoraPart>{}, LoraOptions{.dropout = -0.1}), c10::ValueError);
  EXPECT_THROW(Lora(4, std::vector<LoraPart>{}, LoraOptions{.alpha = std::nan("")}), c10::ValueError);
}

struct SpanCounts {
  int64_t output = 0, grad_input = 0, grad_weight = 0, low_rank = 0;
};

SpanCounts products_of(const AdaptedLayer& layer, const at::Tensor& x) {
  watch::Profile profile;
  {
    const watch::Recording recording(profile);
    layer.forward(x).sum().backward();
  }
  SpanCounts counts;
  for (const watch::SpanTotals& totals : profile.totals()) {
    if (totals.name == "gemm output") counts.output += totals.calls;
    if (totals.name == "gemm grad_input") counts.grad_input += totals.calls;
    if (totals.name == "gemm grad_weight") counts.grad_weight += totals.calls;
    if (totals.name == "gemm low rank") counts.low_rank += totals.calls;
  }
  return counts;
}

TEST(NnLora, AFrozenBaseHasNoGradientProductOfItsWeight) {
  torch::manual_seed(4);
  for (const char* name : {"fp32", "bf16", "fp8"}) {
    for (const AdaptedLayer& layer : adapted_layers()) {
      const amp::Fp8Autocast scope({.recipe = recipe::by_name(name)});
      const auto products = static_cast<int64_t>(layer.products.size());
      layer.adapt({.rank = 4});
      const SpanCounts inner = products_of(layer, torch::randn({kTokens, kIn}).requires_grad_(true));
      EXPECT_EQ(inner.output, products) << layer.name << ", " << name;
      EXPECT_EQ(inner.grad_input, products) << layer.name << ", " << name;
      EXPECT_EQ(inner.grad_weight, 0) << layer.name << ", " << name;
      // x A^T; for each of two parts z B^T, its gradient and that of B; the gradients of A and x.
      EXPECT_EQ(inner.low_rank, 9 * products) << layer.name << ", " << name;
      // The first layer of a model, whose input has no gradient: the input of fc2 alone has one.
      const SpanCounts first = products_of(layer, torch::randn({kTokens, kIn}));
      EXPECT_EQ(first.grad_input, products - 1) << layer.name << ", " << name;
      EXPECT_EQ(first.low_rank, 9 * products - 1) << layer.name << ", " << name;
    }
  }
}

TEST(NnLora, AFrozenBaseKeepsNoInputOfItsOwn) {
  torch::manual_seed(5);
  for (const char* name : {"fp32", "bf16"}) {
    for (const AdaptedLayer& layer : adapted_layers()) {
      const amp::Fp8Autocast scope({.recipe = recipe::by_name(name)});
      layer.adapt({.rank = 4});
      if (std::string(name) == "bf16") layer.module->to(at::kBFloat16);
      const at::Tensor x = torch::randn({kTokens, kIn}).to(layer.module->parameters()[0].scalar_type());
      const int64_t size = x.element_size(), norms = layer.name == "Linear" ? 0 : 1;
      const ops::SavedBytesCounter counter(layer.module->parameters());
      const at::Tensor output = layer.forward(x.detach().requires_grad_(true));
      // The inputs of the adapters, the narrow products (both parts), and of a norm its input and a number or two a row.
      int64_t expected = norms * (kTokens * kIn * size);
      for (const auto& [prefix, in, out] : layer.products) expected += kTokens * in * size + kTokens * 2 * 4 * 4;
      // The input of the activation.
      if (layer.products.size() == 2) expected += kTokens * 2 * kOut * size;
      EXPECT_GE(counter.bytes(), expected) << layer.name << ", " << name;
      EXPECT_LE(counter.bytes(), expected + norms * kTokens * 2 * 4) << layer.name << ", " << name;
    }
  }
}

TEST(NnLora, ACloneHasTheAdaptersOfItsOriginalForItself) {
  torch::manual_seed(6);
  const at::NoGradGuard no_grad;
  const at::Tensor x = torch::randn({kTokens, kIn});
  LayerNormLinear layer(kIn, kOut);
  layer->add_lora("", Lora(kIn, std::vector<LoraPart>{{"some", 5, 20}}, LoraOptions{.rank = 3, .alpha = 5}));
  randomize_adapters(*layer);
  const auto copy = std::dynamic_pointer_cast<LayerNormLinearImpl>(layer->clone());
  const at::Tensor before = layer->forward(x);
  EXPECT_TRUE(at::equal(copy->forward(x), before));
  randomize_adapters(*copy);
  EXPECT_FALSE(at::equal(copy->forward(x), before));
  EXPECT_TRUE(at::equal(layer->forward(x), before));
  copy->remove_lora("");
  EXPECT_EQ(copy->parameters().size(), layer->parameters().size() - 2);
  EXPECT_FALSE(at::equal(copy->forward(x), before));
}

// y = x W^T with W the values of the codes: gradients of x are sums over W's rows, in FP32 of exact values.
TEST(NnLora, HeldCodesOfATrainingBaseGiveTheGradientOfTheirValues) {
  torch::manual_seed(7);
  for (const recipe::Granularity granularity : {recipe::kPerRow, recipe::kBlock128x128}) {
    Linear held(150, 140), values(150, 140);
    const at::Tensor weight = held->weight.joined().detach();
    {
      const at::NoGradGuard no_grad;
      values->weight.joined().copy_(
          ops::dequantize(ops::quantize(weight, {.granularity = granularity}).tensor, at::kFloat));
      values->bias.joined().copy_(held->bias.joined());
    }
    hold_codes(*held, {}, {.has_gradient = true, .granularity = granularity});
    EXPECT_EQ(held->weight.joined().storage().nbytes(), 4U);
    const at::Tensor x = torch::randn({kTokens, 150}), seed = torch::randn({kTokens, 140});
    const at::Tensor ours = x.clone().requires_grad_(true), theirs = x.clone().requires_grad_(true);
    const at::Tensor output = held->forward(ours), expected = values->forward(theirs);
    output.backward(seed);
    expected.backward(seed);
    // Both round sums of the same products: 150 or 140 of them, and once for each scale.
    const at::Tensor of_weight = values->weight.joined().detach().abs();
    const at::Tensor bound = (150 + kernels::kGemmExtraRoundings) * 0x1p-23 * x.abs().matmul(of_weight.t()) + 0x1p-22;
    EXPECT_TRUE(((output - expected).abs() <= bound).all().item<bool>());
    const at::Tensor grad_bound =
        (140 + kernels::kGemmExtraRoundings) * 0x1p-23 * seed.abs().matmul(of_weight) + 0x1p-22;
    EXPECT_TRUE(((ours.grad() - theirs.grad()).abs() <= grad_bound).all().item<bool>());
  }
}

// Under a recipe of codes the gradient's are multiplied by the held weight in BF16.
TEST(NnLora, HeldCodesOfAnotherFormThanTheRecipesAreDecodedForTheGradient) {
  torch::manual_seed(8);
  Linear held(150, 140, LinearOptions{.bias = false});
  const ops::ScaledTensor codes =
      ops::quantize(held->weight.joined().detach(), {.granularity = recipe::kPerRow}).tensor;
  hold_codes(*held, {}, {.has_gradient = true});
  const at::Tensor x = torch::randn({kTokens, 150}).requires_grad_(true), seed = torch::randn({kTokens, 140});
  const recipe::Recipe recipe = recipe::by_name("fp8-current");
  {
    const amp::Fp8Autocast scope({.recipe = recipe});
    held->forward(x).backward(seed.to(at::kBFloat16));
  }
  const recipe::OperandRecipe of_grad = recipe.operand(recipe::Role::kGradOutput, recipe::GemmKind::kGradInput);
  const ops::ScaledTensor grad = ops::quantize(seed.to(at::kBFloat16), ops::quantize_options(of_grad, {})).tensor;
  const ops::ScaledTensor weight = ops::plain_values(ops::dequantize(codes, at::kBFloat16), format::Format::kBf16);
  const at::Tensor expected = at::empty_like(x);
  ops::multiply({.kind = recipe::GemmKind::kGradInput, .a = grad, .b = weight}, expected);
  EXPECT_TRUE(at::equal(x.grad(), expected));
}

}  // namespace
}  // namespace plimsoll::nn
