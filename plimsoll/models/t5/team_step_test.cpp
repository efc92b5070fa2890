#include "plimsoll/models/t5/team_step.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <gtest/gtest.h>

#include "plimsoll/models/t5/load.h"
#include "plimsoll/models/t5/testing.h"
#include "plimsoll/watch/session.h"

namespace plimsoll::models {
namespace {

struct Text {
  at::Tensor input, mask, target;
  int64_t rows_per_text;
};

// Logits of each step, [steps, rows, vocabulary].
at::Tensor logits_of(T5ForConditionalGenerationImpl& model, const Text& text, bool by_layers) {
  std::optional<watch::Session> watching;  // whose products and norms are the layers'
  if (by_layers) watching.emplace(watch::SessionOptions{.mode = watch::Mode::kGuard});
  const T5Encoded encoded{model.encode(text.input, text.mask), text.mask};
  T5Cache cache = model.start(encoded, text.rows_per_text, text.target.size(1));
  std::vector<at::Tensor> steps;
  for (int64_t i = 0; i < text.target.size(1); ++i) {
    const at::Tensor tokens = text.target.narrow(1, i, 1);
    const bool by_team = i > 1 && !by_layers;
    if (by_team) {
      const auto logits = T5TeamStep::logits(model, tokens, cache);
      EXPECT_TRUE(logits) << "step " << i;
      steps.push_back(logits->to(at::kFloat));
    } else {
      steps.push_back(model.extend(tokens, cache));
    }
    EXPECT_EQ(cache.length(), i + 1);
  }
  return at::stack(steps);
}

TEST(T5TeamStep, GivesTheBitsOfTheLayersForAnyThreads) {
  const at::NoGradGuard no_grad;
  for (const T5Config& kind : testing::t5_kinds()) {
    for (const auto& [dtype, value] : kT5Dtypes) {
      if (value == T5Dtype::kAsStored) continue;
      T5ForConditionalGeneration model = testing::small_t5(kind);
      model->to(computed_in(value, at::kFloat));
      if (const std::optional<ops::CodeKind> codes = code_kind(value)) testing::hold_codes(*model, *codes);
      const at::Tensor input = testing::t5_tokens(2, 9);
      at::Tensor padded = at::ones({2, 9}, at::kLong), holes = padded.clone();
      padded[1].narrow(0, 5, 4).fill_(0);
      holes[0][3].fill_(0);
      for (const Text& text :
           {Text{input.narrow(0, 0, 1), {}, testing::t5_tokens(1, 6), 1},
            Text{input, padded, testing::t5_tokens(2, 6), 1}, Text{input, holes, testing::t5_tokens(6, 6), 3}}) {
        const at::Tensor expected = logits_of(*model, text, true);
        for (const int threads : {1, 2}) {
          const nn::testing::ScopedThreads scope(threads);
          EXPECT_TRUE(at::equal(logits_of(*model, text, false), expected))
              << dtype << ", " << text.target.size(0) << " rows, " << threads << " threads";
        }
      }
    }
  }
}

TEST(T5TeamStep, LeavesToTheLayersWhatTheyDoOtherwise) {
  const at::NoGradGuard no_grad;
  T5ForConditionalGeneration model = testing::small_t5();
  const T5Encoded encoded{model->encode(testing::t5_tokens(1, 9)), {}};
  T5Cache cache = model->start(encoded, 1, 8);
  const at::Tensor token = testing::t5_tokens(1, 1);
  EXPECT_FALSE(T5TeamStep::logits(*model, token, cache)) << "the first of a cache";
  for (int i = 0; i < 2; ++i) model->extend(token, cache);
  EXPECT_TRUE(T5TeamStep::logits(*model, token, cache));
  EXPECT_FALSE(T5TeamStep::logits(*model, testing::t5_tokens(1, 2), cache)) << "two tokens";
  model->train();
  EXPECT_FALSE(T5TeamStep::logits(*model, token, cache)) << "dropout";
  model->eval();
  {
    const watch::Session session({.mode = watch::Mode::kCount});
    EXPECT_FALSE(T5TeamStep::logits(*model, token, cache)) << "watched";
  }
  model->to(at::kBFloat16);
  EXPECT_FALSE(T5TeamStep::logits(*model, token, cache)) << "a cache of another dtype";
  EXPECT_EQ(cache.length(), 3);
}

TEST(T5TeamStep, SeesWeightsThatHaveChanged) {
  const at::NoGradGuard no_grad;
  T5ForConditionalGeneration model = testing::small_t5();
  const Text text{testing::t5_tokens(1, 9), {}, testing::t5_tokens(1, 4), 1};
  logits_of(*model, text, false);
  for (const at::Tensor& weight : model->parameters()) weight.mul_(0.5);
  const at::Tensor after = logits_of(*model, text, false);
  EXPECT_TRUE(at::equal(after, logits_of(*model, text, true)));
}

TEST(T5TeamStep, ATokenOutsideOfTheVocabularyIsAnErrorThatLeavesTheCache) {
  const at::NoGradGuard no_grad;
  T5ForConditionalGeneration model = testing::small_t5();
  T5Cache cache = model->start({model->encode(testing::t5_tokens(1, 9)), {}}, 1, 8);
  for (int i = 0; i < 2; ++i) model->extend(testing::t5_tokens(1, 1), cache);
  EXPECT_THROW(model->extend(at::full({1, 1}, 90, at::kLong), cache), c10::Error);
  EXPECT_EQ(cache.length(), 2);
}

}  // namespace
}  // namespace plimsoll::models
