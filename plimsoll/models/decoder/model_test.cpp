#include "plimsoll/models/decoder/model.h"

#include <gtest/gtest.h>

#include "plimsoll/amp/fp8_autocast.h"
#include "plimsoll/io/error.h"
#include "plimsoll/io/testing.h"
#include "plimsoll/models/decoder/family.h"
#include "plimsoll/models/decoder/tensors.h"
#include "plimsoll/models/decoder/testing.h"
#include "plimsoll/models/decoding.h"
#include "plimsoll/models/load.h"
#include "plimsoll/nn/held_codes.h"
#include "plimsoll/nn/testing.h"
#include "plimsoll/nn/undrawn.h"
#include "plimsoll/ops/tensor/dtype.h"

namespace plimsoll::models {
namespace {

using nn::testing::Tensors;

constexpr int64_t kTokens = 29;

at::Tensor ids_of(const DecoderConfig& config, int64_t batch, int64_t seq) {
  return torch::randint(config.vocabulary, {batch, seq}, at::kLong);
}

std::string family_name(const DecoderConfig& config) { return traits_of(config.family).model_type; }

// Recipes in which no scale of a row depends on another row. Delayed scaling's stand until its scope ends.
std::vector<recipe::Recipe> recipes_by_row() {
  std::vector<recipe::Recipe> recipes;
  for (const char* name : {"fp32", "bf16", "fp16", "fp8", "fp8-row", "fp8-block", "mxfp8", "mxfp4"}) {
    recipes.push_back(recipe::by_name(name));
  }
  return recipes;
}

Tensors in_pieces(DecoderImpl& model, const at::Tensor& ids, const std::vector<int64_t>& ends) {
  TokenCache cache = model.make_cache();
  Tensors pieces;
  for (const int64_t end : ends) {
    pieces.push_back(model.extend(ids.slice(1, cache.length(), end), cache, {.all_logits = true}));
  }
  while (cache.length() < ids.size(1)) {
    pieces.push_back(model.extend(ids.slice(1, cache.length(), cache.length() + 1), cache));
  }
  return pieces;
}

void expect_same_bits(DecoderImpl& model, const recipe::Recipe& recipe) {
  const at::Tensor ids = ids_of(model.config, 3, kTokens);
  {
    const amp::Fp8Autocast scope({.recipe = recipe});  // delayed scaling takes its scales from here
    model.forward(ids);
  }
  const amp::Fp8Autocast scope({.recipe = recipe});
  const at::Tensor trained = model.forward(ids).detach();
  EXPECT_TRUE(torch::equal(at::cat(in_pieces(model, ids, {kTokens}), 1), trained)) << "prefill";
  EXPECT_TRUE(torch::equal(at::cat(in_pieces(model, ids, {11, 16, kTokens}), 1), trained)) << "chunks";
  TokenCache cache = model.make_cache();
  EXPECT_TRUE(torch::equal(model.extend(ids, cache), trained.slice(1, -1))) << "the last alone";
  EXPECT_TRUE(torch::equal(at::cat(in_pieces(model, ids, {13}), 1), trained)) << "decode";
  for (int64_t row = 0; row < ids.size(0); ++row) {
    const at::Tensor alone = ids.slice(0, row, row + 1);
    EXPECT_TRUE(torch::equal(at::cat(in_pieces(model, alone, {7, 12}), 1), trained.slice(0, row, row + 1)))
        << "alone " << row;
  }
}

TEST(Decoder, TrainingPrefillChunksAndDecodeHaveTheSameBitsAloneAndInABatch) {
  for (const DecoderConfig& config : testing::small_decoders()) {
    torch::manual_seed(1);
    Decoder model(config);
    nn::testing::randomize(*model);
    model->eval();
    for (const recipe::Recipe& recipe : recipes_by_row()) {
      SCOPED_TRACE(family_name(config) + " " + std::string(recipe.name()));
      expect_same_bits(*model, recipe);
    }
  }
}

TEST(Decoder, WeightsInCodesHaveTheSameBitsWholeInChunksAndInDecoding) {
  for (const DecoderConfig& config : testing::small_decoders()) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      torch::manual_seed(5);
      Decoder model(config);
      model->to(dtype);
      nn::hold_codes(*model);
      model->eval();
      const at::NoGradGuard no_grad;
      const at::Tensor ids = ids_of(config, 2, kTokens), whole = model->forward(ids);
      EXPECT_TRUE(torch::equal(at::cat(in_pieces(*model, ids, {13, 18}), 1), whole)) << family_name(config) << dtype;
      const at::Tensor alone = ids.slice(0, 1, 2);
      EXPECT_TRUE(torch::equal(at::cat(in_pieces(*model, alone, {9}), 1), whole.slice(0, 1, 2)))
          << family_name(config) << dtype;
    }
  }
}

// Logits of what follows prompts of unlike lengths, each extended by the same tokens: together, padded, and alone.
struct UnlikeLengths {
  nn::CacheFormat format = nn::CacheFormat::kAsGiven;
  std::vector<bool> sides = {false, true};  // whether the padding stands left
};
void expect_unlike_lengths_as_alone(DecoderImpl& model, const UnlikeLengths& unlike, const std::string& what) {
  const std::vector<int64_t> lengths = {9, 4, 4, 13}, chunks = {3, 1, 1};
  const int64_t batch = 4, longest = 13, more = 5;
  const at::Tensor ids = ids_of(model.config, batch, longest + more);
  for (const bool left : unlike.sides) {
    at::Tensor tokens = at::full({batch, longest + 1}, 5, at::kLong), mask = at::zeros({batch, longest + 1}, at::kLong);
    for (int64_t row = 0; row < batch; ++row) {
      const int64_t length = lengths[static_cast<size_t>(row)], first = left ? longest + 1 - length : 0;
      tokens[row].narrow(0, first, length).copy_(ids[row].narrow(0, 0, length));
      mask[row].narrow(0, first, length).fill_(1);
    }
    TokenCache cache = model.make_cache({.format = unlike.format});
    Tensors together = {model.extend(tokens, cache, {.attention_mask = mask})};
    int64_t read = 0;
    for (const int64_t chunk : chunks) {
      Tensors next;
      for (int64_t row = 0; row < batch; ++row) {
        next.push_back(ids[row].narrow(0, lengths[static_cast<size_t>(row)] + read, chunk));
      }
      together.push_back(model.extend(at::stack(next), cache));
      read += chunk;
    }
    for (int64_t row = 0; row < batch; ++row) {
      const int64_t length = lengths[static_cast<size_t>(row)];
      TokenCache own = model.make_cache({.format = unlike.format});
      at::Tensor alone = model.extend(ids.slice(0, row, row + 1).narrow(1, 0, length), own);
      for (size_t i = 0; i < together.size(); ++i) {
        EXPECT_TRUE(torch::equal(together[i].slice(0, row, row + 1), alone))
            << what << ", row " << row << ", call " << i << (left ? ", left" : ", right");
        if (i == chunks.size()) break;
        alone = model.extend(ids.slice(0, row, row + 1).narrow(1, own.length(), chunks[i]), own);
      }
    }
  }
}

TEST(Decoder, TextsOfUnlikeLengthsHaveTheBitsThatEachHasAlone) {
  for (const DecoderConfig& config : testing::small_decoders()) {
    torch::manual_seed(7);
    Decoder model(config);
    nn::testing::randomize(*model);
    model->eval();
    for (const recipe::Recipe& recipe : recipes_by_row()) {
      {
        const amp::Fp8Autocast scope({.recipe = recipe});  // delayed scaling takes its scales from here
        model->forward(ids_of(config, 3, kTokens));
      }
      const amp::Fp8Autocast scope({.recipe = recipe});
      expect_unlike_lengths_as_alone(*model, {}, family_name(config) + " " + std::string(recipe.name()));
    }
  }
}

// Padding of a row takes no place of the context: the row's own tokens do.
TEST(Decoder, PaddedRowsNearTheContextAreReadWhereTheirTokensFit) {
  for (const DecoderConfig& config : testing::small_decoders()) {
    torch::manual_seed(11);
    Decoder model(config);
    nn::testing::randomize(*model);
    model->eval();
    for (const std::vector<int64_t>& lengths : {std::vector<int64_t>{60, 9, 9}, {60, 60, 60}}) {
      constexpr int64_t kPlaces = 30;
      const std::vector<int64_t> more = {4, 3, lengths[2] == 9 ? kPlaces : 1};
      const at::Tensor ids = ids_of(config, 3, 60 + kPlaces);
      at::Tensor prompt = at::zeros({3, 60}, at::kLong), prompt_mask = at::zeros({3, 60}, at::kLong);
      at::Tensor next = at::zeros({3, kPlaces}, at::kLong), mask = at::zeros({3, kPlaces}, at::kLong);
      for (int64_t row = 0; row < 3; ++row) {
        const int64_t length = lengths[static_cast<size_t>(row)], count = more[static_cast<size_t>(row)];
        prompt[row].narrow(0, 0, length).copy_(ids[row].narrow(0, 0, length));
        prompt_mask[row].narrow(0, 0, length).fill_(1);
        next[row].narrow(0, kPlaces - count, count).copy_(ids[row].narrow(0, length, count));
        mask[row].narrow(0, kPlaces - count, count).fill_(1);
      }
      for (const bool all_logits : {false, true}) {
        TokenCache cache = model->make_cache();
        model->extend(prompt, cache, {.attention_mask = prompt_mask});
        const at::Tensor logits = model->extend(next, cache, {.attention_mask = mask, .all_logits = all_logits});
        EXPECT_EQ(logits.size(1), all_logits ? kPlaces : 1);
        for (int64_t row = 0; row < 3; ++row) {
          const int64_t count = all_logits ? more[static_cast<size_t>(row)] : 1;
          const int64_t length = lengths[static_cast<size_t>(row)] + more[static_cast<size_t>(row)];
          TokenCache own = model->make_cache();
          const at::Tensor alone =
              model->extend(ids.slice(0, row, row + 1).narrow(1, 0, length), own, {.all_logits = true});
          EXPECT_TRUE(torch::equal(logits[row].slice(0, -count), alone[0].slice(0, -count)))
              << family_name(config) << ", row " << row << ", of " << lengths;
          EXPECT_EQ(cache.length(row), length);
        }
      }
    }
  }
}

TEST(Decoder, ATeamsStepsOfTextsOfUnlikeLengthsHaveTheBitsThatEachHasAlone) {
  using nn::CacheFormat;
  const std::vector<std::pair<std::string, CacheFormat>> kinds = {
      {"fp32", CacheFormat::kAsGiven}, {"fp32", CacheFormat::kBf16}, {"bf16", CacheFormat::kAsGiven},
      {"bf16", CacheFormat::kE4m3},    {"fp16", CacheFormat::kBf16}, {"codes", CacheFormat::kAsGiven}};
  for (const DecoderConfig& config : testing::small_decoders()) {
    for (const auto& [dtype, format] : kinds) {
      torch::manual_seed(8);
      Decoder model(config);
      nn::testing::randomize(*model);
      model->to(dtype == "codes" ? at::kBFloat16 : ops::dtype_of(ops::parse_format(dtype, "test")));
      if (dtype == "codes") nn::hold_codes(*model);
      model->eval();
      expect_unlike_lengths_as_alone(*model, {.format = format, .sides = {false}}, family_name(config) + " " + dtype);
    }
  }
}

TEST(Decoder, HasTheBitsForAnyNumberOfThreads) {
  for (const DecoderConfig& config : testing::small_decoders()) {
    torch::manual_seed(2);
    Decoder model(config);
    model->eval();
    const at::NoGradGuard no_grad;
    const at::Tensor ids = ids_of(config, 2, kTokens);
    const at::Tensor expected = model->forward(ids);
    for (const int threads : {1, 3}) {
      const nn::testing::ScopedThreads team(threads);
      EXPECT_TRUE(torch::equal(model->forward(ids), expected)) << family_name(config) << " " << threads;
    }
  }
}

TEST(Decoder, ItsListOfParametersIsTheModels) {
  for (const DecoderConfig& config : testing::small_decoders()) {
    ParameterShapes shapes;
    const Decoder model(config);
    for (const auto& parameter : model->named_parameters()) {
      shapes.emplace(parameter.key(), parameter.value().sizes().vec());
    }
    EXPECT_EQ(decoder_parameter_shapes(config), shapes) << family_name(config);
  }
}

TEST(Decoder, PartsOfAFilesTensorsAreTheParameterAgain) {
  for (const DecoderConfig& config : testing::small_decoders()) {
    for (const DecoderTensor& tensor : decoder_tensors(config)) {
      const at::Tensor parameter = torch::randn(tensor.shape);
      Tensors rows;
      for (const StoredPart& part : tensor.parts) {
        const at::Tensor stored = stored_parts(tensor, config, parameter).at(part.name);
        EXPECT_EQ(stored.sizes(), at::IntArrayRef(part.shape)) << part.name;
        rows.push_back(rows_of(stored, tensor.order, config));
      }
      EXPECT_TRUE(torch::equal(at::cat(rows), parameter)) << tensor.parameter;
    }
  }
}

TEST(Decoder, ACheckpointsShapeMakesTheSameModel) {
  for (const DecoderConfig& config : testing::small_decoders()) {
    torch::manual_seed(3);
    Decoder model(config);
    const nlohmann::json shape = model->shape();
    const Family& family = family_of(shape);
    const io::TensorMap tensors = tensors_of(*model);
    family.check(shape, stored(tensors));
    const std::shared_ptr<LanguageModel> again = family.make(shape);
    load_tensors(again->module(), tensors);
    const at::Tensor ids = ids_of(config, 1, 9);
    model->eval();
    again->module().eval();
    EXPECT_TRUE(torch::equal(again->logits(ids), model->logits(ids))) << family_name(config);
  }
}

TEST(Decoder, ParametersThatAreToBeGivenAreNotDrawn) {
  torch::manual_seed(4);
  const at::Tensor expected = torch::rand({1});
  torch::manual_seed(4);
  {
    const nn::UndrawnParameters undrawn;
    for (const DecoderConfig& config : testing::small_decoders()) const Decoder model(config);
  }
  EXPECT_TRUE(torch::equal(torch::rand({1}), expected));
}

TEST(Decoder, RefusesWhatItCannotSee) {
  const DecoderConfig config = testing::small_decoders().front();
  Decoder model(config);
  EXPECT_THROW(model->forward(ids_of(config, 1, config.context + 1)), c10::Error);
  EXPECT_THROW(model->forward(ids_of(config, 1, 5), torch::ones({1, 4})), c10::Error);
  TokenCache other(config.layers + 1, {});
  EXPECT_THROW(model->extend(ids_of(config, 1, 5), other), c10::Error);
}

TEST(Decoding, AStepThatThrowsIsTakenAgain) {
  Decoder model(testing::small_decoders().front());
  nn::testing::randomize(*model);
  model->eval();
  const std::vector<std::vector<int64_t>> prompts = {{1, 2, 3}, {4, 5, 6, 7, 8}};
  const auto written = [&](int64_t failing_step) {
    Decoding decoding(*model, {});
    decoding.begin(prompts, 6);
    for (int64_t step = 0; !decoding.done(); ++step) {
      if (step == failing_step) {
        nn::ForwardHooks& hooks = *model->units().back().hooks;
        hooks.before = [] { throw std::bad_alloc(); };
        EXPECT_THROW(decoding.step(), std::bad_alloc);
        hooks.before = {};
      }
      decoding.step();
    }
    return std::pair(decoding.text(0), decoding.text(1));
  };
  const auto expected = written(-1);
  for (const int64_t step : {0, 1, 4}) EXPECT_EQ(written(step), expected) << step;
}

TEST(Decoding, OfAFileThatIsShortenedThrows) {
  const io::TemporaryDirectory directory;
  save(*Decoder(testing::small_decoders().front()), directory.path());
  const LoadedModel loaded = load(directory.path());
  const auto file = directory.path() / "model.safetensors";
  std::filesystem::resize_file(file, 100);
  Decoding decoding(*loaded.model, {});
  decoding.begin({{1, 2, 3}}, 2);
  EXPECT_THROW(decoding.step(), io::Error);
}

}  // namespace
}  // namespace plimsoll::models
