// The shapes that a file is compared with are those of the model that is made afterwards.
#include "plimsoll/models/t5/shapes.h"

#include <gtest/gtest.h>

#include "plimsoll/models/gpt/model.h"
#include "plimsoll/models/gpt/shapes.h"
#include "plimsoll/models/t5/testing.h"

namespace plimsoll::models {
namespace {

ParameterShapes shapes_of(const torch::nn::Module& model) {
  ParameterShapes shapes;
  for (const auto& parameter : model.named_parameters()) {
    shapes.emplace(parameter.key(), parameter.value().sizes().vec());
  }
  return shapes;
}

TEST(ParameterShapes, AreThoseOfAGpt) {
  for (const bool tied : {false, true}) {
    for (const nn::Normalization norm : {nn::Normalization::kLayerNorm, nn::Normalization::kRmsNorm}) {
      for (const int64_t layers : {0, 1, 3}) {
        const GptConfig config{.vocabulary = 40,
                               .layers = layers,
                               .dim = 24,
                               .heads = 4,
                               .context = 12,
                               .tie_embeddings = tied,
                               .normalization = norm};
        EXPECT_EQ(gpt_parameter_shapes(config), shapes_of(*Gpt(config)));
      }
    }
  }
}

TEST(ParameterShapes, AreThoseOfAT5) {
  for (T5Config config : testing::t5_kinds()) {
    for (const bool encoder_only : {false, true}) {
      for (const auto& [layers, decoder_layers] : {std::pair(2, 2), std::pair(3, 1), std::pair(0, 0)}) {
        config.vocab_size = 90;
        config.d_model = 32;
        config.d_kv = 8;
        config.d_ff = 40;
        config.num_heads = 3;
        config.num_layers = layers;
        config.num_decoder_layers = decoder_layers;
        config.encoder_only = encoder_only;
        EXPECT_EQ(t5_parameter_shapes(config), shapes_of(*T5ForConditionalGeneration(config)));
      }
    }
  }
}

}  // namespace
}  // namespace plimsoll::models
