// A GPT's shape in a checkpoint: what older ones say still makes the same model.
#include "plimsoll/models/gpt/family.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

#include "plimsoll/io/error.h"
#include "plimsoll/models/gpt/model.h"

namespace plimsoll::models {
namespace {

using nlohmann::json;

TEST(GptFamily, AShapeSaysWhatItAlwaysDid) {
  const json shape = gpt_shape_of({.layers = 2, .dim = 8, .heads = 4, .context = 6});
  EXPECT_EQ(shape.dump(), R"({"context":6,"dim":8,"heads":4,"layers":2})");
  GptConfig config = shape;
  config.normalization = nn::Normalization::kRmsNorm;
  config.norm_epsilon = 0x1p-20;
  config.tie_embeddings = true;
  EXPECT_EQ(
      json(config).dump(),
      R"({"context":6,"dim":8,"heads":4,"layers":2,"norm_epsilon":9.5367431640625e-07,"own_head":false,"rms_norm":true})");
}

TEST(GptFamily, AShapeMakesTheModelThatItIsOf) {
  for (const char* text :
       {R"({"layers":2,"dim":8,"heads":4,"context":6})",
        R"({"layers":1,"dim":8,"heads":2,"context":3,"own_head":false,"rms_norm":true,"vocabulary":11})"}) {
    const json shape = json::parse(text);
    EXPECT_EQ(&family_of(shape), presets().front().value.family);
    const auto model = make_language_model(shape, 1);
    EXPECT_EQ(model->shape(), shape);
    EXPECT_EQ(model->context(), shape.at("context").get<int64_t>());
    EXPECT_NO_THROW(check_gpt(shape, stored(tensors_of(model->module()))));
  }
}

TEST(GptFamily, TheSeedAloneDecidesTheWeights) {
  const json shape = gpt_shape_of({.layers = 1, .dim = 8, .heads = 2, .context = 4});
  const auto weights = [&](int64_t seed) { return make_language_model(shape, seed)->module().parameters().front(); };
  EXPECT_TRUE(weights(3).equal(weights(3)));
  EXPECT_FALSE(weights(3).equal(weights(4)));
}

TEST(GptFamily, WhatDoesNotFitIsRefused) {
  const json shape = gpt_shape_of({.layers = 2, .dim = 8, .heads = 4, .context = 6});
  const StoredTensors tensors = stored(tensors_of(make_language_model(shape, 1)->module()));
  json other = shape;
  other["layers"] = 3;
  EXPECT_THROW(check_gpt(other, tensors), io::Error);
  other["layers"] = int64_t{1} << 40;
  EXPECT_THROW(check_gpt(other, tensors), io::Error);
  other = shape;
  other["heads"] = 3;
  EXPECT_THROW(check_gpt(other, tensors), std::invalid_argument);
  other = shape;
  other.erase("dim");
  EXPECT_THROW(check_gpt(other, tensors), json::exception);
  other = shape;
  other["family"] = "gtp";
  EXPECT_THROW(family_of(other), io::Error);
  StoredTensors narrow = tensors;
  narrow.at("norm.bias").dtype = "F8_E4M3";
  EXPECT_THROW(check_gpt(shape, narrow), io::Error);
}

}  // namespace
}  // namespace plimsoll::models
