// Arguments that make no sense are refused where a layer is made, in one error that names what it expected and got.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "plimsoll/nn/embedding.h"
#include "plimsoll/nn/layer_norm.h"
#include "plimsoll/nn/scaled_module.h"
#include "plimsoll/nn/transformer_layer.h"

namespace plimsoll::nn {
namespace {

const double kNan = std::numeric_limits<double>::quiet_NaN(), kInf = std::numeric_limits<double>::infinity();

struct Refused {
  std::function<void()> make;
  std::string expected;
};

void expect_refused(const std::vector<Refused>& cases) {
  for (const Refused& one : cases) {
    try {
      one.make();
      ADD_FAILURE() << "nothing refused what should be: expected " << one.expected;
    } catch (const c10::ValueError& error) {
      const std::string text = error.what_without_backtrace();
      EXPECT_NE(text.find("expected " + one.expected), std::string::npos) << text;
      EXPECT_NE(text.find("got"), std::string::npos) << text;
    }
  }
}

TEST(Construction, NormsNeedASizeAndAnEpsilon) {
  expect_refused({
      {[] { LayerNorm(0); }, "a size >= 1"},
      {[] { RmsNorm(-3); }, "a size >= 1"},
      {[] { LayerNorm(4, {.eps = -1}); }, "an epsilon"},
      {[] { RmsNorm(4, {.eps = kNan}); }, "an epsilon"},
      {[] { LayerNormLinear(0, 4); }, "a size >= 1"},
      {[] { LayerNormLinear(4, 4, LayerNormLinearOptions{.eps = kInf}); }, "an epsilon"},
      {[] { LayerNormMlp(0, 4); }, "a size >= 1"},
      {[] { LayerNormMlp(4, 4, LayerNormMlpOptions{.eps = -1e-5}); }, "an epsilon"},
      {[] { TransformerLayer(8, 8, 2, TransformerLayerOptions{.layernorm_epsilon = -1}); }, "an epsilon"},
  });
}

TEST(Construction, SizesAreNotNegative) {
  expect_refused({
      {[] { Linear(-1, 4); }, "sizes >= 0"},
      {[] { Linear(4, -4); }, "sizes >= 0"},
      {[] {
         Linear(4, 4, LinearOptions{.parameters_split = {{"a", -1}, {"b", 5}}});
       },
       "rows >= 0"},
      {[] { LayerNormMlp(4, -1); }, "ffn_hidden_size >= 0"},
      {[] { Embedding(-1, 4); }, "rows >= 0"},
      {[] { KeyValueCache(-1); }, "capacity >= 0"},
      {[] { MultiheadAttention(0, 2); }, "hidden_size >= 1"},
      {[] { MultiheadAttention(8, 2, MultiheadAttentionOptions{.kv_channels = -4}); }, "kv_channels >= 0"},
  });
}

TEST(Construction, AttentionNeedsHeadsGroupsAndADropout) {
  expect_refused({
      {[] { DotProductAttention(0, 4); }, "num_gqa_groups that divides 0 heads"},
      {[] { DotProductAttention(4, 0); }, "kv_channels >= 1"},
      {[] { DotProductAttention(4, 8, DotProductAttentionOptions{.num_gqa_groups = 3}); }, "num_gqa_groups"},
      {[] { DotProductAttention(4, 8, DotProductAttentionOptions{.num_gqa_groups = -1}); }, "num_gqa_groups"},
      {[] { MultiheadAttention(8, 4, MultiheadAttentionOptions{.num_gqa_groups = -2}); }, "num_gqa_groups"},
      {[] { DotProductAttention(4, 8, DotProductAttentionOptions{.attention_dropout = 2}); }, "attention_dropout in"},
      {[] { DotProductAttention(4, 8, DotProductAttentionOptions{.attention_dropout = kNan}); },
       "attention_dropout in"},
      {[] { MultiheadAttention(8, 2, MultiheadAttentionOptions{.attention_dropout = 1}); }, "attention_dropout in"},
      {[] { DotProductAttention(4, 8, DotProductAttentionOptions{.softmax_scale = kNan}); }, "softmax_scale"},
      {[] { DotProductAttention(4, 8, DotProductAttentionOptions{.softmax_scale = -1}); }, "softmax_scale"},
      {[] { TransformerLayer(8, 8, 2, TransformerLayerOptions{.hidden_dropout = kNan}); }, "hidden_dropout in"},
      {[] { TransformerLayer(8, 8, 2, TransformerLayerOptions{.hidden_dropout = -0.1}); }, "hidden_dropout in"},
  });
}

TEST(LoadBuffer, AStateOfAnotherDtypeOrShapeIsRefused) {
  const at::Tensor history = at::zeros({4}), scale = at::zeros({1});
  expect_refused({
      {[&] { load_buffer("input_amax_history", history, at::zeros({16}, at::kLong)); },
       "'input_amax_history' of Float"},
      {[&] { load_buffer("input_amax_history", history, at::zeros({16}, at::kDouble)); },
       "'input_amax_history' of Float"},
      {[&] {
         load_buffer("input_amax_history", history, at::zeros({2, 8}));
       },
       "'input_amax_history' of Float"},
      {[&] { load_buffer("input_amax_history", history, at::zeros({0})); }, "'input_amax_history' of Float"},
      {[&] { load_buffer("input_scale", scale, at::zeros({2})); }, "'input_scale' of Float"},
      {[&] { load_buffer("input_step", at::zeros({1}, at::kLong), scale); }, "'input_step' of Long"},
  });
  load_buffer("input_amax_history", history, at::ones({16}));
  EXPECT_TRUE(at::equal(history, at::ones({16})));
}

}  // namespace
}  // namespace plimsoll::nn
