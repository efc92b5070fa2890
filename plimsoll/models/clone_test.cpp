// A clone computes what its original computes, from tensors of its own, and is reported under the same names.
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <set>
#include <string>

#include "plimsoll/amp/fp8_autocast.h"
#include "plimsoll/models/gpt/model.h"
#include "plimsoll/models/t5/testing.h"
#include "plimsoll/recipe/recipe.h"
#include "plimsoll/watch/session.h"

namespace plimsoll::models {
namespace {

template <class Impl>
std::shared_ptr<Impl> clone_of(const torch::nn::ModuleHolder<Impl>& model) {
  return std::dynamic_pointer_cast<Impl>(model->clone());
}

// A module with a T5 in it, which is cloned as a child.
struct HolderImpl : torch::nn::Cloneable<HolderImpl> {
  explicit HolderImpl(T5Config settings) : config(settings) { HolderImpl::reset(); }
  void reset() override { t5 = register_module("t5", T5ForConditionalGeneration(config)); }

  T5Config config;
  T5ForConditionalGeneration t5{nullptr};
};

struct T5Batch {
  at::Tensor input = testing::t5_tokens(2, 7), target = testing::t5_tokens(2, 5);

  T5Input labelled() const { return {.input_ids = input, .labels = target}; }
  at::Tensor logits(T5ForConditionalGenerationImpl& model) const {
    const at::NoGradGuard no_grad;
    model.forward(labelled());  // the second call has packed weights
    return model.forward(labelled()).logits;
  }
};

// Memory that a new tensor of the same size is likely to get, full of NaN.
void leave_nan_behind(int64_t elements) {
  for (int i = 0; i < 4; ++i) at::full({elements}, std::nan(""), at::kFloat);
}

void expect_own_parameters(const torch::nn::Module& copy, const torch::nn::Module& original) {
  std::set<const void*> storages;
  for (const at::Tensor& parameter : original.parameters()) storages.insert(parameter.const_data_ptr());
  for (const auto& parameter : copy.named_parameters()) {
    if (parameter.value().numel() == 0) continue;  // codes
    EXPECT_FALSE(storages.contains(parameter.value().const_data_ptr())) << parameter.key();
  }
}

void expect_same_gradients(T5ForConditionalGenerationImpl& copy, T5ForConditionalGenerationImpl& original,
                           const T5Batch& batch) {
  for (auto* model : {&copy, &original}) {
    model->zero_grad();
    model->forward(batch.labelled()).loss.backward();
  }
  const auto theirs = original.named_parameters();
  for (const auto& parameter : copy.named_parameters()) {
    EXPECT_TRUE(at::equal(parameter.value().grad(), theirs[parameter.key()].grad())) << parameter.key();
  }
}

TEST(Clone, OfAT5ComputesWhatItsOriginalDoes) {
  for (const T5Config& kind : testing::t5_kinds()) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      SCOPED_TRACE(c10::str(kind.tie_word_embeddings ? "tied " : "untied ", dtype));
      T5ForConditionalGeneration model = testing::small_t5(kind);
      model->to(dtype);
      const T5Batch batch;
      const at::Tensor before = batch.logits(*model);
      leave_nan_behind(model->shared->weight.numel());
      const auto copy = clone_of(model);
      copy->eval();
      EXPECT_TRUE(at::equal(batch.logits(*copy), before));
      expect_own_parameters(*copy, *model);
      if (dtype == at::kFloat) expect_same_gradients(*copy, *model, batch);
    }
  }
}

TEST(Clone, OfATiedHeadFollowsItsOwnTable) {
  T5ForConditionalGeneration model = testing::small_t5();
  const T5Batch batch;
  const at::Tensor before = batch.logits(*model);
  const auto copy = clone_of(model);
  copy->eval();
  EXPECT_TRUE(copy->head().weight().is_same(copy->shared->weight));
  const at::NoGradGuard no_grad;
  copy->shared->weight.zero_();
  EXPECT_EQ(batch.logits(*copy).abs().max().item<float>(), 0);
  EXPECT_TRUE(at::equal(batch.logits(*model), before));
  copy->shared->weight.set_data(model->shared->weight.clone());
  EXPECT_TRUE(at::equal(batch.logits(*copy), before));
}

TEST(Clone, OfAModuleAroundAT5ComputesWhatItsOriginalDoes) {
  for (const T5Config& kind : testing::t5_kinds()) {
    SCOPED_TRACE(kind.tie_word_embeddings ? "tied" : "untied");
    HolderImpl holder(testing::small_t5(kind)->config);
    holder.t5->reset_parameters();
    holder.eval();
    const T5Batch batch;
    const auto copy = std::dynamic_pointer_cast<HolderImpl>(holder.clone());
    copy->eval();
    EXPECT_TRUE(at::equal(batch.logits(*copy->t5), batch.logits(*holder.t5)));
    expect_own_parameters(*copy, holder);
    expect_same_gradients(*copy->t5, *holder.t5, batch);
  }
}

TEST(Clone, OfAT5WithCodesComputesWhatItsOriginalDoes) {
  for (const T5Config& kind : testing::t5_kinds()) {
    T5ForConditionalGeneration model = testing::small_t5(kind);
    model->to(at::kBFloat16);
    model->head().quantize({.weight = model->head().weight().detach().clone()});
    const T5Batch batch;
    const auto copy = clone_of(model);
    copy->eval();
    EXPECT_EQ(copy->head().weight().numel(), 0);
    EXPECT_TRUE(at::equal(batch.logits(*copy), batch.logits(*model)));
  }
}

TEST(Clone, OfAGptComputesWhatItsOriginalDoes) {
  for (const bool tied : {false, true}) {
    for (const char* recipe : {"fp32", "bf16", "fp8"}) {
      SCOPED_TRACE(c10::str(tied ? "tied " : "untied ", recipe));
      at::manual_seed(5);
      Gpt model(GptConfig{.vocabulary = 64, .layers = 2, .dim = 32, .heads = 4, .context = 16, .tie_embeddings = tied});
      const at::Tensor tokens = at::randint(64, {2, 8}, at::kLong), targets = at::randint(64, {2, 8}, at::kLong);
      const amp::Fp8Autocast scope({.recipe = recipe::by_name(recipe)});
      model->loss(tokens, targets);  // there are scales and cached codes to copy or to leave
      const auto copy = clone_of(model);
      expect_own_parameters(*copy, *model);
      for (GptImpl* each : {model.get(), copy.get()}) each->loss(tokens, targets, true).backward();
      const auto theirs = model->named_parameters();
      for (const auto& parameter : copy->named_parameters()) {
        EXPECT_TRUE(at::equal(parameter.value().grad(), theirs[parameter.key()].grad())) << parameter.key();
      }
      const at::NoGradGuard no_grad;
      const at::Tensor before = model->forward(tokens);
      for (at::Tensor& parameter : copy->parameters()) parameter.zero_();
      EXPECT_TRUE(at::equal(model->forward(tokens), before));
    }
  }
}

// The names that a watch hears of while `run` runs.
std::set<std::string> names_of(const std::function<void()>& run) {
  const at::NoGradGuard no_grad;
  watch::Session session;
  run();
  std::set<std::string> names;
  for (const watch::Record& record : session.slots().records()) names.insert(record.name);
  return names;
}

TEST(Clone, IsWatchedUnderTheNamesOfItsOriginal) {
  at::manual_seed(6);
  Gpt gpt(GptConfig{.vocabulary = 64, .layers = 2, .dim = 32, .heads = 4, .context = 16});
  const at::Tensor tokens = at::randint(64, {2, 8}, at::kLong);
  const auto names_of_gpt = [&](GptImpl& model) {
    const amp::Fp8Autocast scope({.recipe = recipe::by_name("fp16")});
    return names_of([&] { model.forward(tokens); });
  };
  const auto of_gpt = names_of_gpt(*gpt);
  EXPECT_TRUE(of_gpt.contains("blocks.1.layernorm_mlp.fc2/output"));
  EXPECT_EQ(names_of_gpt(*clone_of(gpt)), of_gpt);

  for (const T5Config& kind : testing::t5_kinds()) {
    T5ForConditionalGeneration t5 = testing::small_t5(kind);
    const T5Batch batch;
    const auto copy = clone_of(t5);
    copy->eval();
    const auto of_t5 = names_of([&] { t5->forward(batch.labelled()); });
    EXPECT_TRUE(of_t5.contains("lm_head/output"));
    EXPECT_EQ(names_of([&] { copy->forward(batch.labelled()); }), of_t5);
  }
}

}  // namespace
}  // namespace plimsoll::models
