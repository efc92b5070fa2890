#include "plimsoll/models/t5/generation.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <limits>

#include "plimsoll/models/t5/testing.h"

namespace plimsoll::models {
namespace {

using testing::small_t5;

TEST(T5Cache, StepsGiveTheLogitsOfTheWhole) {
  const at::NoGradGuard no_grad;
  for (const T5Config& kind : testing::t5_kinds()) {
    T5ForConditionalGeneration model = small_t5(kind);
    const at::Tensor input = testing::t5_tokens(2, 9), target = testing::t5_tokens(2, 12);
    at::Tensor mask = at::full({2, 9}, 1, at::kLong);
    mask[1].narrow(0, 5, 4).fill_(0);
    const T5Encoded encoded{model->encode(input, mask), mask};
    const at::Tensor whole =
        model->forward({.input_ids = input, .attention_mask = mask, .decoder_input_ids = target}).logits;
    T5Cache cache = model->start(encoded, 1, 12);
    for (const auto& [first, count] : std::vector<std::pair<int64_t, int64_t>>{{0, 1}, {1, 4}, {5, 1}, {6, 6}}) {
      const at::Tensor step = model->extend(target.narrow(1, first, count), cache);
      const at::Tensor expected = whole.select(1, first + count - 1);
      // Products are the same bits; attention sums its keys in another order.
      EXPECT_LT((step - expected).abs().max().item<double>(), testing::kReordered * expected.abs().max().item<double>())
          << first;
    }
    EXPECT_EQ(cache.length(), 12);
    EXPECT_THROW(model->extend(target.narrow(1, 0, 1), cache), c10::Error);
  }
}

TEST(T5Cache, RowsOfOneTextReadItsKeysTogether) {
  const at::NoGradGuard no_grad;
  T5ForConditionalGeneration model = small_t5();
  const at::Tensor input = testing::t5_tokens(2, 9), target = testing::t5_tokens(6, 4);
  const T5Encoded encoded{model->encode(input), {}};
  T5Cache together = model->start(encoded, 3, 4);
  const at::Tensor logits = model->extend(target, together);
  for (int64_t row = 0; row < 6; ++row) {
    T5Cache alone = model->start({encoded.hidden.narrow(0, row / 3, 1), {}}, 1, 4);
    const at::Tensor expected = model->extend(target.narrow(0, row, 1), alone)[0];
    EXPECT_LT((logits[row] - expected).abs().max().item<double>(),
              testing::kReordered * expected.abs().max().item<double>());
  }
}

TEST(T5Cache, ReorderedRowsGoOnWhereTheOthersStood) {
  const at::NoGradGuard no_grad;
  T5ForConditionalGeneration model = small_t5();
  const T5Encoded encoded{model->encode(testing::t5_tokens(1, 9)), {}};
  const at::Tensor first = testing::t5_tokens(3, 4), next = testing::t5_tokens(3, 1);
  const at::Tensor order = at::full({3}, 2, at::kLong);
  order[1].fill_(0);
  T5Cache cache = model->start(encoded, 3, 8);
  model->extend(first, cache);
  cache.reorder(order);
  T5Cache expected = model->start(encoded, 3, 8);
  model->extend(first.index_select(0, order), expected);
  EXPECT_TRUE(at::equal(model->extend(next, cache), model->extend(next, expected)));
}

TEST(T5Cache, MoreRoomKeepsWhatWasRead) {
  const at::NoGradGuard no_grad;
  T5ForConditionalGeneration model = small_t5();
  const T5Encoded encoded{model->encode(testing::t5_tokens(2, 9)), {}};
  const at::Tensor first = testing::t5_tokens(2, 4), next = testing::t5_tokens(2, 1);
  T5Cache roomy = model->start(encoded, 1, 16), cache = model->start(encoded, 1, 4);
  cache.reserve(8);  // without a token
  cache.reserve(4);
  model->extend(first, roomy);
  model->extend(first, cache);
  EXPECT_THROW(model->extend(next, cache), c10::Error);
  cache.reserve(5);
  EXPECT_EQ(cache.length(), 4);
  EXPECT_EQ(cache.capacity(), 5);
  EXPECT_TRUE(at::equal(model->extend(next, cache), model->extend(next, roomy)));
}

TEST(T5Forward, CachedTokensHaveTheLogitsOfTheWhole) {
  const at::NoGradGuard no_grad;
  T5ForConditionalGeneration model = small_t5();
  const at::Tensor input = testing::t5_tokens(2, 9), target = testing::t5_tokens(2, 6);
  const at::Tensor whole = model->forward({.input_ids = input, .decoder_input_ids = target}).logits;
  T5Cache cache = model->start({model->encode(input), {}}, 1, 6);
  for (const auto& [first, count] : std::vector<std::pair<int64_t, int64_t>>{{0, 3}, {3, 1}, {4, 2}}) {
    const at::Tensor expected = whole.narrow(1, first, count);
    const at::Tensor logits =
        model->forward({.decoder_input_ids = target.narrow(1, first, count), .cache = &cache}).logits;
    // Products are the same bits; attention sums its keys in another order.
    EXPECT_LT((logits - expected).abs().max().item<double>(), testing::kReordered * expected.abs().max().item<double>())
        << first;
  }
  EXPECT_THROW(model->forward({.labels = target, .cache = &cache}), c10::Error);
  const at::AutoGradMode grad(true);
  EXPECT_THROW(model->forward({.decoder_input_ids = target, .cache = &cache}), c10::Error);
}

TEST(T5Forward, EmbeddingsOfIdsGiveTheBitsOfTheIds) {
  T5ForConditionalGeneration model = small_t5();
  const at::Tensor input = testing::t5_tokens(2, 9), target = testing::t5_tokens(2, 6);
  const auto embeds = [&](const at::Tensor& ids) {
    return model->shared->weight.index_select(0, ids.flatten()).view({ids.size(0), ids.size(1), -1});
  };
  const T5Output expected = model->forward({.input_ids = input, .decoder_input_ids = target, .hidden_states = true});
  const T5Output output =
      model->forward({.inputs_embeds = embeds(input), .decoder_inputs_embeds = embeds(target), .hidden_states = true});
  EXPECT_TRUE(at::equal(output.logits, expected.logits));
  for (const auto& [mine, theirs, layers] :
       {std::tuple(&output.encoder_hidden_states, &expected.encoder_hidden_states, model->config.num_layers),
        std::tuple(&output.decoder_hidden_states, &expected.decoder_hidden_states, model->config.num_decoder_layers)}) {
    ASSERT_EQ(mine->size(), static_cast<size_t>(layers) + 1);
    for (size_t i = 0; i < mine->size(); ++i) EXPECT_TRUE(at::equal(mine->at(i), theirs->at(i))) << i;
  }
  EXPECT_TRUE(at::equal(output.encoder_hidden_states.back(), output.encoder_output));
  EXPECT_THROW(model->forward({.input_ids = input, .decoder_input_ids = target, .inputs_embeds = embeds(input)}),
               c10::Error);
  EXPECT_THROW(model->run_encoder({.inputs_embeds = embeds(input).narrow(2, 0, 5)}), c10::Error);
}

TEST(T5Generation, DependsOnNeitherThreadsNorTheRestOfTheBatch) {
  T5ForConditionalGeneration model = small_t5();
  const at::Tensor input = testing::t5_tokens(4, 9);
  for (const int64_t beams : {1, 3}) {
    const T5GenerationOptions options{.max_new_tokens = 24, .beams = beams};
    const auto write = [&](int threads, const at::Tensor& ids) {
      const nn::testing::ScopedThreads scope(threads);
      return generate(*model, ids, {}, options).sequences;
    };
    const at::Tensor all = write(1, input);
    EXPECT_TRUE(at::equal(all, write(3, input)));
    for (int64_t row = 0; row < 4; ++row) {
      const at::Tensor alone = write(2, input.narrow(0, row, 1));
      EXPECT_TRUE(at::equal(all.narrow(0, row, 1).narrow(1, 0, alone.size(1)), alone)) << row;
    }
  }
}

TEST(T5Generation, ManyBeamsOfAShortTextFindTheBest) {
  const at::NoGradGuard no_grad;
  T5ForConditionalGeneration model = small_t5();
  const at::Tensor input = testing::t5_tokens(1, 5);
  // As many beams as texts of one token there are: the best text of two tokens cannot be missed.
  const at::Tensor found =
      generate(*model, input, {}, {.max_new_tokens = 2, .beams = 90, .length_penalty = 0}).sequences;
  const T5Encoded encoded{model->encode(input), {}};
  double best = -1e30;
  at::Tensor expected;
  for (int64_t token = 0; token < 90; ++token) {
    const at::Tensor start = at::full({1, 2}, 0, at::kLong);
    start[0][1].fill_(token);
    const at::Tensor scores =
        model->forward({.input_ids = input, .decoder_input_ids = start}).logits[0].log_softmax(-1, at::kDouble);
    const double first = scores[0][token].item<double>();
    if (token == model->config.eos_token_id) continue;
    const double second = scores[1].max().item<double>();
    if (first + second > best) {
      best = first + second;
      expected = at::cat({start[0], scores[1].argmax().view({1})});
    }
  }
  const at::Tensor end =
      model->forward({.input_ids = input, .decoder_input_ids = at::full({1, 1}, 0, at::kLong)}).logits;
  ASSERT_LT(end[0][0].log_softmax(-1)[1].item<double>(), best) << "the empty text would win";
  EXPECT_TRUE(at::equal(found[0], expected));
}

TEST(T5Generation, NothingIsWrittenWhereNothingIsAskedFor) {
  T5ForConditionalGeneration model = small_t5();
  for (const int64_t beams : {1, 2}) {
    const at::Tensor ids =
        generate(*model, testing::t5_tokens(2, 3), {}, {.max_new_tokens = 0, .beams = beams}).sequences;
    EXPECT_TRUE(at::equal(ids, at::full({2, 1}, 0, at::kLong)));
  }
}

TEST(T5Generation, ScoresAreThoseThatTokensWereChosenBy) {
  T5ForConditionalGeneration model = small_t5();
  const at::Tensor input = testing::t5_tokens(2, 5);
  T5GenerationOptions options{.max_new_tokens = 6, .keeps_scores = true};
  options.rules.no_repeat_ngram_size = 1;
  const T5Generated greedy = generate(*model, input, {}, options);
  ASSERT_EQ(static_cast<int64_t>(greedy.scores.size()), greedy.sequences.size(1) - 1);
  for (size_t step = 0; step < greedy.scores.size(); ++step) {
    const at::Tensor tokens = greedy.sequences.select(1, static_cast<int64_t>(step) + 1);
    EXPECT_TRUE(at::equal(greedy.scores[step].argmax(-1), tokens)) << step;
    EXPECT_EQ(greedy.scores[step][0].isneginf().sum().item<int64_t>(), static_cast<int64_t>(step) + 1);
  }
  options.samples = true;
  options.sampling = {.temperature = 0.5, .top_k = 4, .top_p = 1};
  options.sequences = 3;
  const T5Generated drawn = generate(*model, input, {}, options);
  for (size_t step = 0; step < drawn.scores.size(); ++step) {
    const at::Tensor tokens = drawn.sequences.select(1, static_cast<int64_t>(step) + 1);
    const at::Tensor& scores = drawn.scores[step];
    EXPECT_TRUE(scores.isfinite().sum(1).eq(4).all().item<bool>()) << step;
    EXPECT_TRUE(scores.gather(1, tokens.unsqueeze(1)).isfinite().all().item<bool>()) << step;
  }
}

TEST(T5Generation, ATextWhoseLogitsAreNotFiniteEndsThere) {
  const at::NoGradGuard no_grad;
  T5ForConditionalGeneration model = small_t5(
      {.feed_forward = kernels::Activation::kGeglu, .tie_word_embeddings = false, .scale_decoder_outputs = false});
  constexpr int64_t kBad = 89;  // a token, of the second text alone
  at::Tensor input = testing::t5_tokens(3, 5);
  input.masked_fill_(input.eq(kBad), 5);
  input[1][2].fill_(kBad);
  const T5GenerationOptions greedy{.max_new_tokens = 6}, beams{.max_new_tokens = 6, .beams = 3},
      draws{.max_new_tokens = 6, .samples = true, .sequences = 2};
  const at::Tensor expected = generate(*model, input, {}, greedy).sequences;
  ASSERT_FALSE(expected.eq(kBad).any().item<bool>()) << "a text would read the bad token";
  for (const T5GenerationOptions& options : {greedy, beams, draws}) {
    EXPECT_TRUE(generate(*model, input, {}, options).not_finite.empty());
  }
  model->shared->weight[kBad].fill_(std::numeric_limits<float>::quiet_NaN());
  for (const T5GenerationOptions& options : {greedy, beams, draws}) {
    EXPECT_EQ(generate(*model, input, {}, options).not_finite, std::set<int64_t>{1});
  }
  const at::Tensor written = generate(*model, input, {}, greedy).sequences;
  EXPECT_TRUE(written[1].eq(0).all().item<bool>());
  EXPECT_FALSE(expected[1].eq(0).all().item<bool>());
  for (const int64_t row : {0, 2}) EXPECT_TRUE(at::equal(written[row], expected[row])) << row;
  const at::Tensor searched = generate(*model, input, {}, beams).sequences;
  EXPECT_TRUE(searched[1].slice(0, 1).eq(model->config.eos_token_id).all().item<bool>());
}

TEST(T5Generation, WhereTheRulesAllowNoTokenADrawIsAnError) {
  T5ForConditionalGeneration model = small_t5();
  T5GenerationOptions options{.max_new_tokens = 2, .samples = true};
  options.rules.min_new_tokens = 2;
  for (int64_t token = 0; token < 90; ++token) options.rules.bad_words_ids.push_back({token});
  EXPECT_THROW(generate(*model, testing::t5_tokens(1, 3), {}, options), c10::Error);
}

TEST(T5Generation, MistakesAreNamed) {
  T5ForConditionalGeneration model = small_t5();
  const at::Tensor input = testing::t5_tokens(1, 3);
  for (const T5GenerationOptions& options :
       {T5GenerationOptions{.max_new_tokens = -1}, T5GenerationOptions{.beams = 0},
        T5GenerationOptions{.samples = true, .beams = 2}, T5GenerationOptions{.sequences = 2},
        T5GenerationOptions{.beams = 2, .sequences = 3}}) {
    EXPECT_THROW(generate(*model, input, {}, options), c10::Error);
  }
  EXPECT_THROW(generate(*model, testing::t5_tokens(1, 0), {}, {}), c10::Error);
  EXPECT_THROW(generate(*model, at::full({1, 2}, 90, at::kLong), {}, {}), c10::Error);
  EXPECT_THROW(generate(*model, input, at::full({1, 4}, 1, at::kLong), {}), c10::Error);
  EXPECT_THROW(T5ForConditionalGeneration(T5Config{.d_model = 0}), c10::Error);
  EXPECT_THROW(T5ForConditionalGeneration(T5Config{.eos_token_id = -1}), c10::Error);
}

}  // namespace
}  // namespace plimsoll::models
