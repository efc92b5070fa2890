// Steps of a decoder on a team of threads: the bits of its layers, for every family.
#include <ATen/ops/zeros.h>

#include "plimsoll/io/testing.h"
#include "plimsoll/models/decoder/model.h"
#include "plimsoll/models/decoder/testing.h"
#include "plimsoll/models/load.h"
#include "plimsoll/models/team/testing.h"
#include "plimsoll/nn/held_codes.h"
#include "plimsoll/ops/tensor/dtype.h"

namespace plimsoll::models {
namespace {

TEST(DecoderStep, GivesTheBitsOfTheLayersForEveryFamily) {
  const at::NoGradGuard no_grad;
  for (const DecoderConfig& config : testing::small_decoders()) {
    for (const std::string dtype : {"fp32", "bf16", "fp16", "codes"}) {
      at::manual_seed(3);
      Decoder model(config);
      nn::testing::randomize(*model);
      model->to(dtype == "codes" ? at::kBFloat16 : ops::dtype_of(ops::parse_format(dtype, "test")));
      if (dtype == "codes") nn::hold_codes(*model);
      model->eval();
      const std::string what = std::string(traits_of(config.family).model_type) + ", " + dtype;
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
    const LoadedModel loaded = load(directory.path(), {.dtype = WeightDtype::kFp8});
    nn::hold_codes(*model);
    const at::Tensor tokens = at::randint(config.vocabulary, {2, 9}, at::kLong);
    const at::Tensor expected = model->logits(tokens);
    EXPECT_TRUE(at::equal(loaded.model->logits(tokens), expected));
    for (const auto& parameter : loaded.model->module().named_parameters()) {
      const bool is_of_product = parameter.value().dim() == 2 && parameter.key().starts_with("blocks.");
      EXPECT_EQ(parameter.value().stride(0) == 0, is_of_product) << parameter.key();
    }
  }
}

}  // namespace
}  // namespace plimsoll::models
