// Steps of a team of threads against the same steps layer by layer.
#pragma once

#include <ATen/ops/equal.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/stack.h>

#include <optional>
#include <string>
#include <vector>

#include "plimsoll/models/token_cache.h"
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

}  // namespace plimsoll::models::testing
