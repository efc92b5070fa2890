// LoRA of every family: what is adapted, merging, training and generation.
#include "plimsoll/models/lora/lora.h"

#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/types.h>

#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "plimsoll/amp/fp8_autocast.h"
#include "plimsoll/io/atomic_file.h"
#include "plimsoll/io/error.h"
#include "plimsoll/io/json.h"
#include "plimsoll/io/testing.h"
#include "plimsoll/models/load.h"
#include "plimsoll/models/lora/places.h"
#include "plimsoll/models/lora/testing.h"
#include "plimsoll/models/team/testing.h"
#include "plimsoll/nn/held_codes.h"
#include "plimsoll/watch/profile.h"

namespace plimsoll::models {
namespace {

TEST(ModelsLora, AllLinearLayersOfTheBlocksAndNothingElseTrain) {
  for (const DecoderConfig& config : testing::small_decoders()) {
    SCOPED_TRACE(traits_of(config.family).model_type);
    Decoder model = testing::small_base(config);
    const size_t before = model->parameters().size();
    add_lora(*model, testing::kSmallLora);
    size_t modules = 0;
    for (const LoraPlace& place : lora_places(config)) modules += place.modules.size();
    EXPECT_EQ(model->parameters().size(), before + 2 * modules);
    for (const auto& item : model->named_parameters()) {
      const bool is_adapter = item.key().find("lora.") != std::string::npos;
      EXPECT_EQ(item.value().requires_grad(), is_adapter) << item.key();
      if (is_adapter) {
        EXPECT_EQ(item.value().scalar_type(), at::kFloat);
      }
    }
  }
}

TEST(ModelsLora, TargetsAreTheNamesOfTheFamilysFiles) {
  const auto adapters = [](DecoderFamily family, std::vector<std::string> targets) {
    Decoder model = testing::small_base(testing::config_of(family));
    add_lora(*model, {.targets = std::move(targets)});
    std::set<std::string> names;
    for (const AdaptedPlace& adapted : adapted_places(*model)) {
      for (const LoraModule& module : adapted.place.modules) names.insert(module.name);
    }
    return names;
  };
  using Names = std::set<std::string>;
  EXPECT_EQ(
      adapters(DecoderFamily::kLlama, {"v_proj", "layers.1.mlp.up_proj"}),
      (Names{"model.layers.0.self_attn.v_proj", "model.layers.1.self_attn.v_proj", "model.layers.1.mlp.up_proj"}));
  EXPECT_EQ(adapters(DecoderFamily::kGpt2, {"c_attn", "mlp.c_proj"}),
            (Names{"transformer.h.0.attn.c_attn", "transformer.h.1.attn.c_attn", "transformer.h.0.mlp.c_proj",
                   "transformer.h.1.mlp.c_proj"}));
  EXPECT_EQ(adapters(DecoderFamily::kGptNeox, {"query_key_value"}),
            (Names{"gpt_neox.layers.0.attention.query_key_value", "gpt_neox.layers.1.attention.query_key_value"}));
  EXPECT_EQ(testing::error_of([&] {
              adapters(DecoderFamily::kGpt2, {"c_attn", "q_proj"});
            }),
            "lora: expected targets among all-linear, c_attn, c_fc, c_proj, got 'q_proj'");
  EXPECT_EQ(testing::error_of([&] { adapters(DecoderFamily::kGpt2, {}); }), "lora: expected targets, got none");
  Decoder twice = testing::adapted(testing::config_of(DecoderFamily::kLlama));
  EXPECT_EQ(testing::error_of([&] { add_lora(*twice); }),
            "lora: expected a model without adapters, got one that has some");
}

TEST(ModelsLora, AMergedModelHasTheSumInItsWeights) {
  for (const DecoderConfig& config : testing::small_decoders()) {
    SCOPED_TRACE(traits_of(config.family).model_type);
    const at::NoGradGuard no_grad;
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      Decoder model = testing::adapted(config);
      model->to(dtype);
      std::map<std::string, std::array<at::Tensor, 2>> expected;  // sums, and those of magnitudes
      for (const auto& [place, lora] : adapted_places(*model)) {
        const at::Tensor sum = model->named_parameters()[place.parameter()].to(at::kDouble), magnitude = sum.abs();
        for (size_t i = 0; i < lora->parts.size(); ++i) {
          const nn::LoraPart& part = lora->parts[i];
          const at::Tensor a = lora->a[i].to(at::kDouble), b = lora->b[i].to(at::kDouble) * (4.0 / 3);
          sum.narrow(0, part.first_row, part.rows).add_(b.matmul(a));
          magnitude.narrow(0, part.first_row, part.rows).add_(b.abs().matmul(a.abs()));
        }
        expected[place.parameter()] = {sum, magnitude};
      }
      merge_lora(*model);
      EXPECT_EQ(model->parameters().size(), testing::small_base(config)->parameters().size());
      for (const auto& [name, sums] : expected) {
        const auto& [sum, magnitude] = sums;
        const at::Tensor merged = model->named_parameters()[name];
        EXPECT_EQ(merged.scalar_type(), dtype);
        // In FP32 a rounding of 2^-24 for each of three products, each of four sums, and the scaling, which twice that
        // covers in all orders; then one to the dtype.
        const double rounding = dtype == at::kFloat ? 0 : 0x1p-8;
        const at::Tensor bound = (sum.abs() + magnitude * 0x1p-20) * rounding + magnitude * (8 * 0x1p-23);
        EXPECT_TRUE(((merged.to(at::kDouble) - sum).abs() <= bound).all().item<bool>()) << name;
      }
      EXPECT_EQ(testing::error_of([&] { merge_lora(*model); }),
                "lora: expected a model with adapters, got one without");
    }
  }
}

TEST(ModelsLora, GenerationHasTheBitsOfTheForwardPassInTraining) {
  for (const DecoderConfig& config : testing::small_decoders()) {
    SCOPED_TRACE(traits_of(config.family).model_type);
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      Decoder model = testing::adapted(config);
      model->to(dtype);
      const at::Tensor tokens = testing::some_tokens(config);
      model->train();  // no dropout in these models: backward could follow
      const at::Tensor expected = model->forward(tokens).detach();
      model->eval();
      TokenCache cache = model->make_cache({.capacity = tokens.size(1)});
      std::vector<at::Tensor> steps = {model->extend(tokens.narrow(1, 0, 4), cache, {.all_logits = true})};
      for (int64_t i = 4; i < tokens.size(1); ++i) {
        steps.push_back(model->step(tokens.narrow(1, i, 1), cache));
        ASSERT_TRUE(steps.back().defined()) << "a team takes the step";
      }
      EXPECT_TRUE(at::equal(at::cat(steps, 1), expected));
    }
  }
}

TEST(ModelsLora, TextsOfSeveralAdaptersTogetherHaveTheBitsThatEachHasAlone) {
  const at::NoGradGuard no_grad;
  for (const DecoderConfig& config : testing::small_decoders()) {
    // One of all modules, and one of a part of a fused projection and of another rank, where the family has such parts.
    const Decoder all = testing::adapted(config);
    const bool fused = config.family == DecoderFamily::kGpt2 || config.family == DecoderFamily::kGptNeox;
    const Decoder few = testing::adapted(config, {.adapters = {.rank = 5, .alpha = 2, .rank_stabilized = true},
                                                  .targets = fused ? std::vector<std::string>{kAllLinear}
                                                                   : std::vector<std::string>{"v_proj", "up_proj"}});
    const io::TemporaryDirectory first, second;
    save_adapter(*all, first.path());
    save_adapter(*few, second.path());
    for (const std::string dtype : {"fp32", "bf16", "codes"}) {
      const auto base_of = [&] {
        Decoder model = testing::small_base(config);
        model->to(dtype == "fp32" ? at::kFloat : at::kBFloat16);
        if (dtype == "codes") nn::hold_codes(*model);
        return model;
      };
      Decoder base = base_of(), one = base_of(), other = base_of();
      load_adapter(*one, first.path());
      load_adapter(*other, second.path());
      const auto of_one = read_adapter(*base, first.path()), of_other = read_adapter(*base, second.path());
      const std::string what = std::string(traits_of(config.family).model_type) + ", " + dtype;
      using Each = std::vector<testing::TextAlone<DecoderImpl>>;
      testing::expect_bits_of_texts_alone(*base, what + ", each its own",
                                          Each{{one.get(), of_one.get()}, {base.get()}, {other.get(), of_other.get()}});
      testing::expect_bits_of_texts_alone(*base, what + ", two alike",
                                          Each{{one.get(), of_one.get()}, {one.get(), of_one.get()}, {base.get()}});
      const nn::LoraScope scope(of_one.get());
      EXPECT_TRUE(at::equal(base->logits(testing::some_tokens(config)), one->logits(testing::some_tokens(config))))
          << what;
      testing::expect_bits_of_texts_alone(*base, what + ", one its own in a scope",
                                          Each{{one.get()}, {other.get(), of_other.get()}, {one.get()}});
    }
  }
}

TEST(ModelsLora, AnAdapterOutsideTheModelIsRefusedByOneThatHasAdapters) {
  const DecoderConfig config = testing::config_of(DecoderFamily::kLlama);
  const Decoder model = testing::adapted(config);
  const io::TemporaryDirectory directory;
  save_adapter(*model, directory.path());
  EXPECT_EQ(testing::error_of([&] { read_adapter(*model, directory.path()); }),
            "lora: expected a model without adapters, got one that has some");
}

// The mean loss of the last steps is below that of the first under each base and recipe.
TEST(ModelsLora, TrainsOnEveryBaseUnderRecipesAndCheckpointed) {
  const DecoderConfig config = testing::config_of(DecoderFamily::kLlama);
  const io::TemporaryDirectory directory;
  save(*testing::small_base(config), directory.path());
  const at::Tensor tokens = testing::some_tokens(config), inputs = tokens.slice(1, 0, 8), targets = tokens.slice(1, 1);
  const ops::HeldOptions rows{.has_gradient = true};
  const ops::HeldOptions blocks{.has_gradient = true, .granularity = recipe::kBlock128x128};
  for (const LoadOptions& base :
       {LoadOptions{}, LoadOptions{.dtype = WeightDtype::kBf16}, LoadOptions{.dtype = WeightDtype::kFp8, .codes = rows},
        LoadOptions{.dtype = WeightDtype::kFp8, .codes = blocks}}) {
    for (const std::string name : {"fp32", "bf16", "fp8", "fp8-row"}) {
      SCOPED_TRACE(name);
      const LoadedModel loaded = load(directory.path(), base);
      torch::manual_seed(7);
      add_lora(*loaded.model, {.adapters = {.rank = 4, .alpha = 8, .dropout = 0.05}});
      loaded.model->checkpoint_activations(name == "bf16");
      loaded.model->module().train();
      std::vector<at::Tensor> trained;
      for (const at::Tensor& parameter : loaded.model->module().parameters()) {
        if (parameter.requires_grad()) trained.push_back(parameter);
      }
      torch::optim::AdamW optimizer(trained, torch::optim::AdamWOptions(1e-2));
      std::vector<double> losses;
      for (int step = 0; step < 12; ++step) {
        optimizer.zero_grad();
        at::Tensor loss;
        {
          const amp::Fp8Autocast scope({.recipe = recipe::by_name(name)});
          loss = loaded.model->loss(inputs, targets);
        }
        loss.backward();
        optimizer.step();
        losses.push_back(loss.item<double>());
      }
      EXPECT_LT(losses.back(), 0.8 * losses.front());
    }
  }
}

TEST(ModelsLora, CheckpointedBlocksGiveTheSameGradientsWithDropoutAndOnCodes) {
  const DecoderConfig config = testing::config_of(DecoderFamily::kLlama);
  const io::TemporaryDirectory directory;
  save(*testing::small_base(config), directory.path());
  const at::Tensor tokens = testing::some_tokens(config), inputs = tokens.slice(1, 0, 8), targets = tokens.slice(1, 1);
  for (const WeightDtype dtype : {WeightDtype::kAsStored, WeightDtype::kFp8}) {
    const LoadedModel loaded = load(directory.path(), {.dtype = dtype, .codes = {.has_gradient = true}});
    auto& model = dynamic_cast<DecoderImpl&>(*loaded.model);
    add_lora(model, {.adapters = {.rank = 4, .dropout = 0.3}});
    testing::train_by_chance(model);
    model.train();
    std::array<std::map<std::string, at::Tensor>, 2> gradients;
    for (const bool checkpointed : {false, true}) {
      model.checkpoint_activations(checkpointed);
      model.zero_grad();
      torch::manual_seed(8);
      model.loss(inputs, targets).backward();
      for (const auto& item : model.named_parameters()) {
        if (item.value().requires_grad()) gradients[checkpointed].emplace(item.key(), item.value().grad().clone());
      }
    }
    for (const auto& [name, gradient] : gradients[0]) {
      EXPECT_TRUE(at::equal(gradient, gradients[1].at(name))) << name;
      EXPECT_GT(gradient.abs().max().item<double>(), 0) << name;
    }
  }
}

TEST(ModelsLora, AFrozenModelHasNoGradientProductButThoseOfTheHiddenStates) {
  const DecoderConfig config = testing::config_of(DecoderFamily::kLlama);
  Decoder model = testing::adapted(config);
  const at::Tensor tokens = testing::some_tokens(config);
  watch::Profile profile;
  {
    const watch::Recording recording(profile);
    model->loss(tokens.slice(1, 0, 8), tokens.slice(1, 1)).backward();
  }
  int64_t grad_input = 0, grad_weight = 0;
  for (const watch::SpanTotals& totals : profile.totals()) {
    if (totals.name == "gemm grad_input") grad_input += totals.calls;
    if (totals.name == "gemm grad_weight") grad_weight += totals.calls;
  }
  // Four products of each of two layers and the head, but for the first: nothing before it trains.
  EXPECT_EQ(grad_input, 2 * 4 + 1 - 1);
  EXPECT_EQ(grad_weight, 0);
}

}  // namespace
}  // namespace plimsoll::models
