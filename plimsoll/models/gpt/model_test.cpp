#include "plimsoll/models/gpt/model.h"

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/nn/functional/activation.h>
#include <torch/nn/functional/linear.h>

#include "plimsoll/amp/fp8_autocast.h"
#include "plimsoll/nn/testing.h"

namespace plimsoll::models {
namespace {

namespace F = torch::nn::functional;
using nn::testing::Tensors;

constexpr GptConfig kSmall{.vocabulary = 40, .layers = 2, .dim = 32, .heads = 4, .context = 12};

at::Tensor random_tokens(const GptConfig& config, int64_t batch, int64_t seq) {
  return torch::randint(config.vocabulary, {batch, seq}, at::kLong);
}

// bench/torch_gpt.py in torch's C++ ops; `t` holds the parameters in their order.
at::Tensor plain_gpt(const Tensors& t, const at::Tensor& tokens, const GptConfig& config) {
  size_t next = 0;
  const auto norm = [&](const at::Tensor& x) {
    next += 2;
    return at::layer_norm(x, {config.dim}, t[next - 2], t[next - 1]);
  };
  const auto linear = [&](const at::Tensor& x) {
    next += 2;
    return F::linear(x, t[next - 2], t[next - 1]);
  };
  at::Tensor x = at::embedding(t[0], tokens) + t[1].slice(0, 0, tokens.size(1));
  next = 2;
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    const at::Tensor qkv = linear(norm(x)).view({tokens.size(0), tokens.size(1), 3, config.heads, -1});
    const std::vector<at::Tensor> parts = qkv.permute({2, 0, 3, 1, 4}).unbind(0);
    const at::Tensor attended = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0, true);
    x = x + linear(attended.transpose(1, 2).flatten(2));
    const at::Tensor inner = linear(norm(x));
    x = x + linear(F::gelu(inner, F::GELUFuncOptions().approximate("tanh")));
  }
  const at::Tensor normalised = norm(x);
  return F::linear(normalised, config.tie_embeddings ? t[0] : t[next]);
}

GptConfig small_gpt(bool tied) {
  GptConfig config = kSmall;
  config.tie_embeddings = tied;
  return config;
}

TEST(Gpt, MatchesTheCompositionInFp32) {
  for (const bool tied : {false, true}) {
    SCOPED_TRACE(tied);
    const GptConfig config = small_gpt(tied);
    torch::manual_seed(1);
    Gpt model(config);
    EXPECT_EQ(model->named_parameters().contains("head.weight"), !tied);
    nn::testing::randomize(*model);
    const at::Tensor tokens = random_tokens(config, 3, 9), seed = torch::randn({3, 9, config.vocabulary});
    const at::Tensor logits = model->forward(tokens);
    EXPECT_EQ(logits.scalar_type(), at::kFloat);
    logits.backward(seed);
    Tensors ours = {logits.detach()};
    for (const at::Tensor& parameter : model->parameters()) ours.push_back(parameter.grad());
    nn::testing::expect_matches(
        ours, [&](const Tensors& t) { return plain_gpt(t, tokens, config); }, model->parameters(), seed);
  }
}

// With logits of all tokens at once, and without.
TEST(Gpt, LossIsTheMeanCrossEntropy) {
  for (const auto& [vocabulary, tied] : {std::pair(40, false), {40, true}, {5000, false}, {5000, true}}) {
    torch::manual_seed(2);
    GptConfig config = small_gpt(tied);
    config.vocabulary = vocabulary;
    Gpt model(config);
    const at::Tensor tokens = random_tokens(config, 3, 9), targets = random_tokens(config, 3, 9);
    const at::Tensor logits = model->forward(tokens);
    const at::Tensor log_probabilities = logits.to(at::kDouble).log_softmax(-1);
    const double expected = -log_probabilities.gather(-1, targets.unsqueeze(-1)).mean().item<double>();
    const at::Tensor loss = model->loss(tokens, targets);
    // Roundings of a row: 7 of its loss, those of its exponentials, and 26 + 6 for each 1,024 of them in their sum, whose
    // logarithm makes them absolute. Then the mean of 27 rows.
    const double spread = (logits.amax(-1) - logits.amin(-1)).max().item<double>();
    const double sum_roundings = 3 * spread + 6 + 26 + 6 * (1 + vocabulary / 1024) + 2;
    EXPECT_NEAR(loss.item<double>(), expected, ((7 + 27) * expected + sum_roundings) * 0x1p-24);

    SCOPED_TRACE(std::to_string(vocabulary) + (tied ? " tied" : ""));
    loss.backward();
    Tensors ours = {loss.detach()};
    for (const at::Tensor& parameter : model->parameters()) ours.push_back(parameter.grad());
    const auto composition = [&](const Tensors& t) {
      return at::cross_entropy_loss(plain_gpt(t, tokens, config).flatten(0, 1), targets.flatten());
    };
    const auto run = [&](at::ScalarType dtype) {
      return nn::testing::run_composition(composition, nn::testing::leaves(model->parameters(), dtype),
                                          torch::ones({}));
    };
    const Tensors torchs = run(at::kFloat), exact = run(at::kDouble);
    for (size_t i = 0; i < ours.size(); ++i) {
      // Probabilities have the roundings of our kernel's sum, another than torch's.
      const double other = sum_roundings * 0x1p-24 * nn::testing::largest(exact[i]);
      nn::testing::expect_as_accurate(ours[i], torchs[i], exact[i], "tensor " + std::to_string(i), other);
    }
  }
}

TEST(Gpt, InitialisationComesFromTheGeneratorAlone) {
  torch::manual_seed(3);
  Gpt first(kSmall);
  torch::manual_seed(3);
  Gpt second(kSmall);
  Gpt third(kSmall);
  at::Generator generator = at::detail::createCPUGenerator(7);
  third->reset_parameters(generator);
  first->reset_parameters(at::detail::createCPUGenerator(7));
  const auto deviation = [&](const char* name) { return first->named_parameters()[name].std().item<double>(); };
  for (size_t i = 0; i < first->parameters().size(); ++i) {
    EXPECT_TRUE(torch::equal(first->parameters()[i], third->parameters()[i]));
  }
  EXPECT_FALSE(torch::equal(first->head->weight.joined(), second->head->weight.joined()));
  // 4,096 draws: the deviation is within 1 / sqrt(2 * 4096) of it, five times over.
  EXPECT_NEAR(deviation("blocks.0.layernorm_mlp.fc1_weight"), 0.02, 0.02 * 5 / 90);
  EXPECT_NEAR(deviation("blocks.0.layernorm_mlp.fc2_weight"), 0.01, 0.01 * 5 / 90);
  EXPECT_EQ(first->named_parameters()["blocks.1.self_attention.proj.bias"].abs().sum().item<float>(), 0);
}

TEST(Gpt, ProductsAreNamedAfterTheirPath) {
  Gpt model(kSmall);
  EXPECT_EQ(nn::operand_slots(*model).size(), static_cast<size_t>(kSmall.layers * 4 * 3));
  EXPECT_EQ(model->head->products()[0].state->name, "head");
  const auto& mlp = model->blocks->at<nn::TransformerLayerImpl>(1).layernorm_mlp;
  EXPECT_EQ(mlp->products()[1].state->name, "blocks.1.layernorm_mlp.fc2");
}

void expect_pieces_like_the_whole(bool tied) {
  torch::manual_seed(4);
  Gpt model(small_gpt(tied));
  model->eval();
  const at::Tensor tokens = random_tokens(kSmall, 2, kSmall.context);
  for (const char* name : {"fp32", "bf16", "fp8", "fp8-row"}) {
    SCOPED_TRACE(name);
    const at::NoGradGuard no_grad;
    {
      const at::AutoGradMode grad(true);  // delayed scaling takes its scales from here
      const amp::Fp8Autocast scope({.recipe = recipe::by_name(name)});
      model->forward(tokens);
    }
    const amp::Fp8Autocast scope({.recipe = recipe::by_name(name)});
    const at::Tensor whole = model->forward(tokens);
    TokenCache cache = model->make_cache();
    Tensors pieces = {model->extend(tokens.slice(1, 0, 5), cache, {.all_logits = true}),
                      model->extend(tokens.slice(1, 5, 8), cache, {.all_logits = true})};
    for (int64_t i = 8; i < kSmall.context; ++i) pieces.push_back(model->extend(tokens.slice(1, i, i + 1), cache));
    EXPECT_EQ(cache.length(), kSmall.context);
    // Attention rounds its probabilities elsewhere for other numbers of queries; a code may then differ by one step.
    const double step = std::string(name) == "fp32" ? 0x1p-18 : 0x1p-4;
    EXPECT_LE(nn::testing::largest(at::cat(pieces, 1) - whole), step * nn::testing::largest(whole));
    EXPECT_THROW(model->extend(tokens.slice(1, 0, 1), cache), c10::Error);
  }
}

TEST(Gpt, TokensOneByOneGiveTheLogitsOfTheWholeText) {
  expect_pieces_like_the_whole(/*tied=*/false);
  expect_pieces_like_the_whole(/*tied=*/true);
}

TEST(Gpt, ExtendNoticesThatTheWeightsChanged) {
  Gpt model(kSmall);
  model->eval();
  TokenCache cache = model->make_cache();
  const at::Tensor token = random_tokens(kSmall, 1, 1);
  model->extend(token, cache);
  {
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : model->parameters()) parameter.mul_(1.5);
  }
  EXPECT_THROW(model->extend(token, cache), c10::Error);
  cache.clear();
  model->extend(token, cache);
}

TEST(Gpt, RefusesWhatItCannotSee) {
  Gpt model(kSmall);
  EXPECT_THROW(model->forward(random_tokens(kSmall, 1, kSmall.context + 1)), c10::Error);
  EXPECT_THROW(model->forward(torch::full({1, 3}, kSmall.vocabulary, at::kLong)), c10::Error);
  EXPECT_THROW(model->forward(torch::ones({1, 3})), c10::Error);
  EXPECT_THROW(Gpt(GptConfig{.dim = 30, .heads = 4}), c10::ValueError);
}

TEST(Gpt, RefusesAnEpsilonOrADropoutThatMakesNoSense) {
  const auto error_of = [](const GptConfig& config) -> std::string {
    try {
      const Gpt model(config);
    } catch (const c10::ValueError& error) {
      return error.what_without_backtrace();
    }
    return "";
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_NE(error_of({.norm_epsilon = nan}).find("expected an epsilon"), std::string::npos);
  EXPECT_NE(error_of({.layers = 0, .dropout = 1}).find("expected dropout in"), std::string::npos);
}

}  // namespace
}  // namespace plimsoll::models
