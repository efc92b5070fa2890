#include "plimsoll/models/t5/paged.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "plimsoll/models/t5/testing.h"
#include "plimsoll/watch/session.h"

namespace plimsoll::models {
namespace {

constexpr int64_t kWritten = 110;

std::span<const int64_t> ids_of(const at::Tensor& row) {
  return {row.const_data_ptr<int64_t>(), static_cast<size_t>(row.numel())};
}

// A prompt and what a decoder reads, in pages; and the logits behind each token of a decoder that reads it alone.
struct TestText {
  at::Tensor prompt, written;  // int64 [1, tokens]
  at::Tensor alone = {};       // fp32 [kWritten, vocabulary]
  TokenCache cache = {0, {}};
  std::vector<int64_t> tokens = {};  // PagedModel::decoder_start()

  explicit TestText(int64_t count) : prompt(testing::t5_tokens(1, count)), written(testing::t5_tokens(1, kWritten)) {
    tokens.assign(ids_of(prompt).begin(), ids_of(prompt).end());
    tokens.resize(static_cast<size_t>(encoder_places(count)), -1);
    tokens.insert(tokens.end(), ids_of(written).begin(), ids_of(written).end());
  }

  void read_alone(T5ForConditionalGenerationImpl& model) {
    T5Cache own = model.start({model.encode(prompt)}, 1, kWritten);
    std::vector<at::Tensor> logits;
    for (int64_t i = 0; i < kWritten; ++i) logits.push_back(model.extend(written.narrow(1, i, 1), own));
    alone = at::cat(logits);
  }
  int64_t read() const { return std::max<int64_t>(cache.length() - encoder_places(prompt.size(1)), 0); }
  // `count` more tokens of the decoder.
  TextTokens next(int64_t count, bool wants_logits) {
    const auto from = static_cast<size_t>(cache.length());
    const auto to = static_cast<size_t>(encoder_places(prompt.size(1)) + read() + count);
    return {.cache = cache,
            .tokens = std::span<const int64_t>(tokens).subspan(from, to - from),
            .wants_logits = wants_logits,
            .encoder_tokens = prompt.size(1)};
  }
};

// Three texts that share steps, in pieces, against each alone.
void expect_bits_of_texts_alone(T5ForConditionalGeneration model, const std::string& what) {
  const at::NoGradGuard no_grad;
  PagedT5 paged(model);
  TokenCache like = paged.make_cache({.capacity = 1});
  EXPECT_EQ(paged.prepare(like), model->config.vocab_size);
  std::vector<TestText> texts;
  for (const int64_t count : {5, 32, 40}) texts.emplace_back(count).read_alone(*model);
  const TokenPages pages(like, 20);
  // Tokens of each text by each step, the last of more than a team takes at once.
  const std::vector<std::vector<int64_t>> steps = {{1, 0, 0}, {1, 20, 0}, {1, 1, 3},  {2, 17, 1},
                                                   {1, 1, 1}, {30, 0, 1}, {0, 1, 30}, {70, 1, 70}};
  for (const bool by_layers : {false, true}) {
    std::optional<watch::Session> watching;
    if (by_layers) watching.emplace(watch::SessionOptions{.mode = watch::Mode::kGuard});
    for (const int threads : by_layers ? std::vector{2} : std::vector{1, 3}) {
      const nn::testing::ScopedThreads scope(threads);
      for (int32_t i = 0; i < 3; ++i) {
        texts[static_cast<size_t>(i)].cache = pages.empty_text();
        texts[static_cast<size_t>(i)].cache.set_pages(std::vector{19 - i, i, 9 - i, 3 + i, 16 - i, 10 + i});
      }
      for (size_t step = 0; step < steps.size(); ++step) {
        std::vector<TextTokens> parts;
        std::vector<at::Tensor> expected;
        for (size_t i = 0; i < 3; ++i) {
          const int64_t count = steps[step][i], last = texts[i].read() + count - 1;
          if (count == 0) continue;
          const bool wants = step != 1 || i != 0;
          parts.push_back(texts[i].next(count, wants));
          if (wants) expected.push_back(texts[i].alone.narrow(0, last, 1));
        }
        EXPECT_TRUE(at::equal(paged.extend_texts(parts), at::cat(expected)))
            << what << ", step " << step << ", " << threads << " threads" << (by_layers ? ", by layers" : "");
      }
    }
  }
}

TEST(PagedT5, TextsThatShareStepsHaveTheBitsOfEachAlone) {
  for (const T5Config& kind : testing::t5_kinds()) {
    for (const auto& [dtype, value] : kT5Dtypes) {
      if (value == T5Dtype::kAsStored) continue;
      T5ForConditionalGeneration model = testing::small_t5(kind);
      model->to(computed_in(value, at::kFloat));
      if (const std::optional<ops::CodeKind> codes = code_kind(value)) testing::hold_codes(*model, *codes);
      expect_bits_of_texts_alone(model, std::string(dtype));
      if (value != T5Dtype::kFp16) continue;
      for (const auto& [name, fixes] : kT5Fixes) {
        model->numerics = fixes;
        expect_bits_of_texts_alone(model, std::string("fp16, fixes ") + std::string(name));
      }
    }
  }
}

TEST(PagedT5, ATokenOutsideOfTheVocabularyIsAnError) {
  const at::NoGradGuard no_grad;
  PagedT5 paged(testing::small_t5());
  TokenCache like = paged.make_cache({.capacity = 1});
  paged.prepare(like);
  const TokenPages pages(like, 3);
  for (const size_t wrong : {0, 32}) {
    TestText text(5);
    text.cache = pages.empty_text();
    text.cache.set_pages(std::vector{0, 1, 2});
    text.tokens[wrong] = 90;
    const std::vector<TextTokens> parts = {text.next(1, true)};
    EXPECT_THROW(paged.extend_texts(parts), c10::Error) << wrong;
  }
}

TEST(PagedT5, RefusesAnEncoderAloneAndOtherKeys) {
  EXPECT_THROW(PagedT5(testing::small_t5({.encoder_only = true})), c10::ValueError);
  const PagedT5 paged(testing::small_t5());
  EXPECT_THROW(paged.make_cache({.format = nn::CacheFormat::kE4m3}), c10::ValueError);
}

}  // namespace
}  // namespace plimsoll::models
