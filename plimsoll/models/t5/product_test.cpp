#include "plimsoll/models/t5/product.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include "plimsoll/models/t5/testing.h"
#include "plimsoll/ops/linear/no_kept_weights.h"

namespace plimsoll::models {
namespace {

ops::CodeSource source_of(const T5Linear& layer) { return {.weight = layer->weight().detach().clone()}; }

T5ForConditionalGeneration bf16_t5(const T5Config& config) {
  T5ForConditionalGeneration model = testing::small_t5(config);
  model->to(at::kBFloat16);
  return model;
}

struct ProductText {
  at::Tensor input = testing::t5_tokens(2, 9), target = testing::t5_tokens(2, 5);

  at::Tensor logits(T5ForConditionalGenerationImpl& model) const {
    return model.forward({.input_ids = input, .decoder_input_ids = target}).logits;
  }
};

TEST(T5Product, HoldsCodesInPlaceOfItsLayersWeightsAndGivesThemBack) {
  const at::NoGradGuard no_grad;
  for (const T5Config& kind : testing::t5_kinds()) {
    for (const ops::CodeKind codes : {ops::CodeKind::kE4m3Rows, ops::CodeKind::kNvfp4}) {
      const ProductText text;
      T5ForConditionalGeneration model = bf16_t5(kind);
      const at::Tensor before = text.logits(*model);
      std::vector<T5Product> products = model->products();
      EXPECT_EQ(products.size(), 2 * 4 + 2 * 7 + 1);
      for (T5Product& product : products) {
        T5ForConditionalGeneration coded = bf16_t5(kind);
        const size_t index = static_cast<size_t>(&product - products.data());
        std::vector<ops::CodeSource> sources;
        for (const T5Linear& layer : product.layers()) sources.push_back(source_of(layer));
        product.hold(std::make_shared<const ops::PackedWeights>(sources, codes));
        const T5Product same = coded->products()[index];
        for (const T5Linear& layer : same.layers()) T5Linear(layer)->quantize(source_of(layer), codes);
        const at::Tensor held = text.logits(*model);
        EXPECT_TRUE(at::equal(held, text.logits(*coded))) << product.layers().front()->path();
        EXPECT_FALSE(at::equal(held, before)) << product.layers().front()->path();
        product.hold(nullptr);
        EXPECT_TRUE(at::equal(text.logits(*model), before));
      }
    }
  }
}

TEST(T5Product, OfWhichSomeWeightsAreCodesMultipliesEachAsItIs) {
  const at::NoGradGuard no_grad;
  const auto first = [] { return bf16_t5({})->products()[0]; };
  const T5Product values = first(), all = first(), some = first();
  for (const T5Linear& layer : all.layers()) T5Linear(layer)->quantize(source_of(layer));
  T5Linear(some.layers()[1])->quantize(source_of(some.layers()[1]));
  const at::Tensor x = at::randn({3, 32}).to(at::kBFloat16);
  for (int call = 0; call < 3; ++call) {  // the second packs values
    const auto plain = values.parts(x), codes = all.parts(x), mixed = some.parts(x);
    ASSERT_EQ(mixed.size(), 3);
    EXPECT_TRUE(at::equal(mixed[0], plain[0]) && at::equal(mixed[1], codes[1]) && at::equal(mixed[2], plain[2]));
    EXPECT_FALSE(at::equal(codes[1], plain[1]));
    EXPECT_EQ(some.joined(x).size(-1), 3 * 24);
  }
}

TEST(T5Product, PacksNoValuesWhereNoneAreKept) {
  const at::NoGradGuard no_grad;
  T5ForConditionalGeneration model = bf16_t5({});
  const T5Product product = model->products()[0];
  const at::Tensor x = at::randn({3, 32}).to(at::kBFloat16);
  at::Tensor first;
  {
    const ops::NoKeptWeights no_kept_weights;
    for (int call = 0; call < 3; ++call) EXPECT_EQ(product.packed_for(at::kBFloat16), nullptr);
    first = product.joined(x);
  }
  product.joined(x);
  EXPECT_NE(product.packed_for(at::kBFloat16), nullptr);
  EXPECT_TRUE(at::equal(product.joined(x), first));
}

TEST(T5Plan, KeepsTheNamedProductsInHighPrecisionInCopiesToo) {
  const std::vector<std::string> names = {"encoder.block.1.layer.0.SelfAttention.k",
                                          "decoder.block.0.layer.2.DenseReluDense.wo", "lm_head"};
  for (T5Config kind : testing::t5_kinds()) {
    kind.high_precision = names;
    const T5ForConditionalGeneration model = testing::small_t5(kind);
    const auto copy = std::dynamic_pointer_cast<T5ForConditionalGenerationImpl>(model->clone());
    for (T5ForConditionalGenerationImpl* each : {model.ptr().get(), copy.get()}) {
      std::vector<std::string> wide;
      for (const T5Product& product : each->products()) {
        for (const T5Linear& layer : product.layers()) {
          if (!layer->takes_codes()) wide.push_back(layer->path());
        }
      }
      EXPECT_EQ(wide, names);
    }
    T5Config encoder = kind;
    encoder.encoder_only = true;
    EXPECT_FALSE(T5ForConditionalGeneration(encoder)->products()[4].layers()[1]->takes_codes());
  }
}

TEST(T5Plan, RefusesNamesOfNoProduct) {
  for (const char* name : {"encoder.block.7.layer.0.SelfAttention.k", "shared", ""}) {
    EXPECT_THROW(testing::small_t5({.high_precision = {name}}), c10::ValueError) << name;
  }
}

}  // namespace
}  // namespace plimsoll::models
