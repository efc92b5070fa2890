// Steps of a decoder on a team of threads: the bits of its layers, for every family.
#include <ATen/ops/zeros.h>

#include "plimsoll/io/testing.h"
#include "plimsoll/models/decoder/model.h"
#include "plimsoll/models/decoder/testing.h"
#include "plimsoll/models/load.h"
#include "plimsoll/models/team/testing.h"
#include "plimsoll/nn/held_codes.h"

namespace plimsoll::models {
namespace {

TEST(DecoderStep, GivesTheBitsOfTheLayersForEveryFamily) {
  const at::NoGradGuard no_grad;
  for (const DecoderConfig& config : testing::small_decoders()) {
    for (const auto& [name, dtype] : kWeightDtypes) {
      if (dtype == WeightDtype::kAsStored) continue;
      at::manual_seed(3);
      Decoder model(config);
      nn::testing::randomize(*model);
      model->to(computed_in(dtype, at::kFloat));
      if (const std::optional<ops::CodeKind> kind = code_kind(dtype)) nn::hold_codes(*model, {}, {.kind = *kind});
      model->eval();
      const std::string what = std::string(traits_of(config.family).model_type) + ", " + std::string(name);
      testing::expect_bits_of_layers(*model, what);
      testing::expect_bits_of_texts_alone(*model, what);
    }
  }
}

TEST(DecoderStep, TextsTogetherRefuseWhatATextAloneRefuses) {
  const at::NoGradGuard no_grad;
  Decoder model(testing::small_decoders().front());
  model->eval();
  TokenCache first = model->make_cache();
  model->extend(at::zeros({1, 3}, at::kLong), first);
  const TokenPages pages(first, 2);
  TokenCache cache = pages.empty_text(), other = pages.empty_text();
  cache.set_pages(std::vector{0});
  const std::vector<int64_t> begin = {0, 0, 0};
  model->extend_texts(std::vector<TextTokens>{{cache, begin}});
  const auto refused = [&](const std::vector<int64_t>& tokens) {
    const std::vector<int64_t> good = {1};
    const std::vector<TextTokens> texts = {{cache, good}, {other, tokens}};
    EXPECT_THROW(model->extend_texts(texts), c10::Error);
    EXPECT_EQ(cache.length(), 3);
    EXPECT_EQ(other.length(), 0);
  };
  refused({1});  // has no page
  other.set_pages(std::vector{1});
  refused({});
  refused({model->config.vocabulary});
  refused({-1});
  refused(std::vector<int64_t>(static_cast<size_t>(model->config.context) + 1, 0));
}

TEST(DecoderStep, AFileLoadsAsTheCodesOfItsModel) {
  const at::NoGradGuard no_grad;
  for (const DecoderConfig& config : testing::small_decoders()) {
    SCOPED_TRACE(traits_of(config.family).model_type);
    at::manual_seed(5);
    Decoder model(config);
    nn::testing::randomize(*model);
    model->to(at::kBFloat16);
    model->eval();
    const io::TemporaryDirectory directory;
    save(*model, directory.path());
    const at::Tensor tokens = at::randint(config.vocabulary, {2, 9}, at::kLong);
    const at::Tensor of_values = model->logits(tokens);
    std::vector<at::Tensor> of_codes;
    for (const WeightDtype dtype : {WeightDtype::kFp8, WeightDtype::kNvfp4, WeightDtype::kMxfp4}) {
      const LoadedModel loaded = load(directory.path(), {.dtype = dtype});
      const auto held = std::dynamic_pointer_cast<DecoderImpl>(model->clone());
      ASSERT_NE(held, nullptr);
      nn::hold_codes(*held, {}, {.kind = *code_kind(dtype)});
      held->eval();
      of_codes.push_back(held->logits(tokens));
      EXPECT_TRUE(at::equal(loaded.model->logits(tokens), of_codes.back()));
      for (const auto& parameter : loaded.model->module().named_parameters()) {
        const bool is_of_product = parameter.value().dim() == 2 && parameter.key().starts_with("blocks.");
        EXPECT_EQ(parameter.value().stride(0) == 0, is_of_product) << parameter.key();
      }
    }
    EXPECT_FALSE(at::equal(of_codes[0], of_codes[1]));
    EXPECT_FALSE(at::equal(of_codes[1], of_codes[2]));
    EXPECT_FALSE(at::equal(of_codes[2], of_values));
  }
}

}  // namespace
}  // namespace plimsoll::models
