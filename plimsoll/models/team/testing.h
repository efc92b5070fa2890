// Steps of a team of threads against the same steps layer by layer.
#pragma once

#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/stack.h>

#include <optional>
#include <string>
#include <vector>

#include "plimsoll/models/language_model.h"
#include "plimsoll/models/token_pages.h"
#include "plimsoll/nn/testing.h"
#include "plimsoll/watch/session.h"

namespace plimsoll::models::testing {

inline constexpr int64_t kPrompt = 5;

// Logits of each step after the prompt, [steps, rows, 1, vocabulary].
template <class Model>
at::Tensor logits_of_steps(Model& model, const at::Tensor& tokens, nn::CacheFormat format, bool by_layers) {
  std::optional<watch::Session> watching;  // whose products and norms are the layers'
  if (by_layers) watching.emplace(watch::SessionOptions{.mode = watch::Mode::kGuard});
  TokenCache cache = model.make_cache({.capacity = model.config.context, .format = format});
  model.extend(tokens.narrow(1, 0, kPrompt), cache);
  std::vector<at::Tensor> steps;
  for (int64_t i = kPrompt; i < tokens.size(1); ++i) {
    const at::Tensor token = tokens.narrow(1, i, 1);
    steps.push_back(by_layers ? model.extend(token, cache) : model.step(token, cache));
    EXPECT_TRUE(steps.back().defined()) << "step " << i;
    if (!steps.back().defined()) steps.back() = model.extend(token, cache);
    EXPECT_EQ(cache.length(), i + 1);
  }
  return at::stack(steps);
}

template <class Model>
void expect_bits_of_layers(Model& model, const std::string& what) {
  for (const int64_t rows : {1, 3}) {
    const at::Tensor tokens = at::randint(model.config.vocabulary, {rows, kPrompt + 4}, at::kLong);
    for (const nn::CacheFormat format : {nn::CacheFormat::kAsGiven, nn::CacheFormat::kBf16, nn::CacheFormat::kE4m3}) {
      const at::Tensor expected = logits_of_steps(model, tokens, format, true);
      for (const int threads : rows == 1 ? std::vector{2} : std::vector{1, 2, 3}) {
        const nn::testing::ScopedThreads scope(threads);
        EXPECT_TRUE(at::equal(logits_of_steps(model, tokens, format, false), expected))
            << what << ", " << rows << " rows, " << threads << " threads";
      }
    }
  }
}

// A model that gives a text its bits alone, and what is added for it to the one that all share.
template <class Model>
struct TextAlone {
  Model* model;
  const nn::LoraSet* adapters = nullptr;
};

// Three texts that share steps of a model in chunks, and memory in pages, against each alone.
template <class Model>
void expect_bits_of_texts_alone(Model& model, const std::string& what, const std::vector<TextAlone<Model>>& each) {
  constexpr int64_t kTokens = 40;
  const at::Tensor texts = at::randint(model.config.vocabulary, {3, kTokens}, at::kLong);
  // Tokens of each text by each step; together at most kMostTextRows, of one text alone more than a team takes, and few.
  const std::vector<std::vector<int64_t>> steps = {{5, 0, 0}, {1, 20, 0}, {0, 1, 3}, {2, 17, 1},
                                                   {1, 1, 1}, {30, 0, 0}, {1, 1, 30}};
  for (const nn::CacheFormat format : {nn::CacheFormat::kAsGiven, nn::CacheFormat::kBf16, nn::CacheFormat::kE4m3}) {
    std::vector<TokenCache> alone, together;
    for (int i = 0; i < 3; ++i) {
      alone.push_back(model.make_cache({.capacity = kTokens, .format = format}));
    }
    model.extend(texts.narrow(0, 0, 1).narrow(1, 0, 1), alone[0]);  // converts the weights
    const TokenPages pages(alone[0], 7);
    for (int32_t i = 0; i < 3; ++i) {
      together.push_back(pages.empty_text());
      together.back().set_pages(std::vector{5 - i, i});
    }
    for (const int threads : {1, 3}) {
      const nn::testing::ScopedThreads scope(threads);
      for (TokenCache& cache : alone) cache.clear();
      for (TokenCache& cache : together) cache.clear();
      for (size_t step = 0; step < steps.size(); ++step) {
        std::vector<TextTokens> parts;
        std::vector<at::Tensor> expected;
        for (size_t i = 0; i < 3; ++i) {
          const int64_t count = steps[step][i], begin = together[i].length();
          if (count == 0) continue;
          const at::Tensor tokens = texts[static_cast<int64_t>(i)].narrow(0, begin, count);
          const bool wants = step != 1 || i != 0;
          parts.push_back(
              {together[i], {tokens.const_data_ptr<int64_t>(), static_cast<size_t>(count)}, wants, each[i].adapters});
          const at::Tensor logits = each[i].model->extend(tokens.unsqueeze(0), alone[i]).squeeze(1);
          if (wants) expected.push_back(logits);
        }
        EXPECT_TRUE(at::equal(model.extend_texts(parts), at::cat(expected)))
            << what << ", step " << step << ", " << threads << " threads, cache " << static_cast<int>(format);
      }
    }
  }
}

template <class Model>
void expect_bits_of_texts_alone(Model& model, const std::string& what) {
  expect_bits_of_texts_alone<Model>(model, what, {{&model}, {&model}, {&model}});
}

}  // namespace plimsoll::models::testing
