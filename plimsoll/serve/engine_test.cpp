#include "plimsoll/serve/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>

#include "plimsoll/models/t5/generation.h"
#include "plimsoll/serve/engine_testing.h"
#include "plimsoll/serve/memory_testing.h"

namespace plimsoll::serve {
namespace {

using models::TextEnd;

// A format whose texts are short, of a vocabulary of bytes and words.
std::shared_ptr<const JsonFormat> short_format(int64_t vocabulary) {
  std::vector<std::string> tokens;
  for (int64_t id = 0; id < vocabulary; ++id) {
    const auto byte = static_cast<char>(id % 256);
    tokens.push_back(id < 256 ? std::string(1, byte) : "word" + std::to_string(id));
  }
  const auto schema = nlohmann::ordered_json::parse(R"({"properties": {"word": {"type": "string", "maxLength": 9},
    "list": {"type": "array", "items": {"enum": ["a", "b", 1]}, "maxItems": 3}, "flag": {"type": ["boolean", "null"]}},
    "required": ["word", "flag"]})");
  return std::make_shared<const JsonFormat>(std::make_shared<const TokenTrie>(tokens), read_json_schema(schema));
}

TEST(Engine, TextsOfAFormatAreJsonWithTheBitsThatTheyHaveAlone) {
  const auto model = testing::tiny_model(0);
  const auto format = short_format(model->config.vocabulary);
  std::vector<Request> requests;
  for (int64_t i = 0; i < 30; ++i) {
    requests.push_back({.prompt = {1 + i, 2, 3},
                        .max_new_tokens = testing::kContext - 3,
                        .sampling = {.temperature = 1},
                        .ends = {300}});
    requests.back().seed = i;
    requests.back().top_log_probabilities = 0;
    if (i % 10 != 9) requests.back().format = format;
  }
  const auto written_by = [&](const EngineOptions& options) {
    Engine engine(model, options);
    std::vector<std::shared_ptr<Reply>> replies;
    std::vector<testing::Written> written;
    for (const Request& request : requests) replies.push_back(engine.submit(request));
    for (const auto& reply : replies) written.push_back(testing::read_all(*reply));
    EXPECT_EQ(engine.stats().texts.put_back > 0, options.max_batch > 1);
    return written;
  };
  const int64_t page_bytes = testing::page_bytes_of(model, nn::CacheFormat::kAsGiven);
  const std::vector<testing::Written> alone = written_by({.max_batch = 1});
  const std::vector<testing::Written> together = written_by({.max_batch = 8, .memory = 6 * page_bytes});
  int64_t whole = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(together[i].ids, alone[i].ids);
    EXPECT_EQ(together[i].log_probabilities, alone[i].log_probabilities);
    EXPECT_EQ(together[i].end, alone[i].end);
    if (requests[i].format == nullptr || alone[i].end != TextEnd::kStop) continue;
    std::string text;
    for (const int64_t id : alone[i].ids) text += format->tokens().bytes(id);
    EXPECT_TRUE(nlohmann::json::accept(text)) << text;
    ++whole;
  }
  EXPECT_GT(whole, 10);
}

TEST(Engine, AFormatOfAnotherVocabularyIsRefused) {
  const auto model = testing::tiny_model(0);
  Engine engine(model, {});
  EXPECT_THROW(engine.submit({.prompt = {1}, .format = short_format(model->config.vocabulary - 1)}), c10::ValueError);
}

TEST(Engine, TopLogProbabilitiesAreThoseOfTheLikeliestTokens) {
  Engine engine(testing::tiny_model(0), {});
  const auto reply = engine.submit({.prompt = {1, 2, 3}, .max_new_tokens = 3, .top_log_probabilities = 5});
  int64_t tokens = 0;
  while (const auto token = reply->next()) {
    ++tokens;
    ASSERT_EQ(token->top.size(), 5U);
    EXPECT_EQ(token->top[0].id, token->token.id);
    EXPECT_EQ(token->top[0].log_probability, token->token.log_probability);
    for (size_t i = 1; i < 5; ++i) EXPECT_LE(token->top[i].log_probability, token->top[i - 1].log_probability);
  }
  EXPECT_EQ(tokens, 3);
}

TEST(Engine, RefusesWhatItCannotServe) {
  EXPECT_THROW(Engine(nullptr, {}), c10::ValueError);
  const auto model = testing::tiny_model(0);
  const int64_t page_bytes = testing::page_bytes_of(model, nn::CacheFormat::kAsGiven);
  EXPECT_THROW(Engine(model, {.memory = 4 * page_bytes}), c10::ValueError) << "of 160 tokens, five pages";
  EXPECT_THROW(Engine(model, {.max_batch = 0}), c10::ValueError);
  EXPECT_THROW(Engine(model, {.queue = 0}), c10::ValueError);
  for (const std::string_view name : recipe::names()) {
    SCOPED_TRACE(name);
    if (name == "fp8-current" || name == "ms-eden" || name.starts_with("nvfp4")) {
      EXPECT_THROW(Engine(model, {.recipe = recipe::by_name(name)}), c10::ValueError);
    } else {
      EXPECT_NO_THROW(Engine(model, {.recipe = recipe::by_name(name)}));
    }
  }
  Engine engine(model, {.memory = 5 * page_bytes});
  EXPECT_THROW(engine.submit({}), c10::ValueError);
  EXPECT_THROW(engine.submit({.prompt = {-1}}), c10::ValueError);
  EXPECT_THROW(engine.submit({.prompt = {model->config.vocabulary}}), c10::ValueError);
  EXPECT_THROW(engine.submit({.prompt = {1}, .max_new_tokens = 0}), c10::ValueError);
  EXPECT_THROW(engine.submit({.prompt = {1}, .max_new_tokens = testing::kContext}), c10::ValueError);
  EXPECT_THROW(engine.submit({.prompt = {1}, .sampling = {.temperature = -1}}), c10::ValueError);
  EXPECT_THROW(engine.submit({.prompt = {1}, .rules = {.repetition_penalty = 0}}), c10::ValueError);
  EXPECT_THROW(engine.submit({.prompt = {1}, .adapter = "unknown"}), c10::ValueError);
  EXPECT_EQ(testing::read_all(*engine.submit({.prompt = {1}, .max_new_tokens = testing::kContext - 1})).ids.size(),
            static_cast<size_t>(testing::kContext - 1));
}

TEST(Engine, AFullQueueRefusesAndACancelledRequestMakesRoom) {
  Engine engine(testing::tiny_model(0), {.max_batch = 1, .queue = 2});
  const Request request{.prompt = {1, 2}, .max_new_tokens = testing::kContext - 2};
  std::vector<std::shared_ptr<Reply>> replies;
  for (int i = 0; i < 3; ++i) replies.push_back(engine.submit(request));
  EXPECT_THROW(engine.submit(request), QueueFull);
  for (const auto& reply : replies) reply->cancel();
  for (const auto& reply : replies) testing::read_all(*reply);
  while (engine.stats().texts.running + engine.stats().texts.waiting > 0) std::this_thread::yield();
  EXPECT_EQ(testing::read_all(*engine.submit(request)).end, TextEnd::kLength);
}

TEST(Engine, ACancelledReplyEndsBeforeTheNextStep) {
  Engine engine(testing::tiny_model(0), {});
  const auto reply = engine.submit({.prompt = {1, 2}, .max_new_tokens = testing::kContext - 2});
  ASSERT_TRUE(reply->next());
  reply->cancel();
  const int64_t steps = engine.stats().steps;
  testing::read_all(*reply);
  EXPECT_EQ(reply->end(), TextEnd::kInterrupted);
  EXPECT_LE(engine.stats().steps, steps + 2) << "the one under way, and one that ended between the lines above";
}

TEST(Engine, LogitsThatAreNotFiniteEndTheReplyAlone) {
  const auto model = testing::tiny_model(0);
  const at::NoGradGuard no_grad;
  model->token_embedding->weight[5].fill_(std::numeric_limits<float>::quiet_NaN());
  if (model->head.is_empty()) GTEST_SKIP() << "a tied head would make every logit of token 5 NaN";
  Engine engine(model, {});
  const auto bad = engine.submit({.prompt = {1, 5}, .max_new_tokens = 3});
  const auto good = engine.submit({.prompt = {1, 2}, .max_new_tokens = 3, .rules = {.bad_words_ids = {{5}}}});
  EXPECT_EQ(testing::read_all(*bad).end, TextEnd::kNotFinite);
  EXPECT_EQ(testing::read_all(*good).ids.size(), 3U);
}

TEST(Engine, ARequestThatLacksMemoryAloneEndsAndTheOthersDoNot) {
  const auto model = testing::tiny_model(0);
  static constexpr int64_t kHeavy = 5;
  const auto little = std::make_shared<testing::LittleMemory>(model, [](std::span<const models::TextTokens> texts) {
    return std::ranges::any_of(
        texts, [](const auto& text) { return std::ranges::find(text.tokens, kHeavy) != text.tokens.end(); });
  });
  Engine engine(little, {.max_batch = 4});
  std::vector<Request> requests;
  std::vector<std::shared_ptr<Reply>> replies;
  for (int64_t i = 0; i < 12; ++i) {
    requests.push_back({.prompt = {10 + i, i % 4 == 1 ? kHeavy : 1},
                        .max_new_tokens = 30,
                        .rules = {.bad_words_ids = {{kHeavy}}},
                        .top_log_probabilities = 0});
    replies.push_back(engine.submit(requests.back()));
  }
  for (size_t i = 0; i < replies.size(); ++i) {
    SCOPED_TRACE(i);
    const testing::Written written = testing::read_all(*replies[i]);
    if (i % 4 == 1) {
      EXPECT_EQ(written.end, TextEnd::kInterrupted);
      EXPECT_EQ(replies[i]->error(), "expected enough memory, got none from the system");
      continue;
    }
    const testing::Written alone = testing::written_alone(*model, requests[i], {});
    EXPECT_EQ(replies[i]->error(), "");
    EXPECT_EQ(written.ids, alone.ids);
    EXPECT_EQ(written.log_probabilities, alone.log_probabilities);
  }
  EXPECT_GE(little->failed_steps, 3);
}

// A model behind whose steps an allocation of the engine fails.
class NoMemoryBehind : public testing::LittleMemory {
 public:
  NoMemoryBehind(std::shared_ptr<models::PagedModel> model, int64_t step, int64_t before)
      : LittleMemory(std::move(model), [](std::span<const models::TextTokens>) { return false; }),
        step_(step),
        before_(before) {}

  at::Tensor extend_texts(std::span<const models::TextTokens> texts) override {
    failing_.reset();
    has_failed = has_failed || testing::FailingAllocation::has_failed();
    at::Tensor logits = LittleMemory::extend_texts(texts);
    if (++steps_ == step_) failing_.emplace(before_);
    return logits;
  }

  std::atomic<bool> has_failed = false;

 private:
  const int64_t step_, before_;
  int64_t steps_ = 0;
  std::optional<testing::FailingAllocation> failing_;
};

TEST(Engine, MemoryThatIsLackingOnceBetweenStepsEndsNoOtherReplies) {
  const auto model = testing::tiny_model(0);
  const int64_t memory = 20 * testing::page_bytes_of(model, nn::CacheFormat::kAsGiven);
  const auto written_with = [&](const std::shared_ptr<models::PagedModel>& served, int64_t& ended) {
    Engine engine(served, {.max_batch = 3, .memory = memory});
    std::vector<std::shared_ptr<Reply>> replies;
    std::vector<std::vector<int64_t>> written;
    for (int64_t i = 0; i < 5; ++i) {
      std::vector<int64_t> prompt(models::kPageTokens - 4, 10 + i);
      replies.push_back(engine.submit({.prompt = std::move(prompt), .max_new_tokens = 5 + i}));
    }
    for (const auto& reply : replies) {
      written.push_back(testing::read_all(*reply).ids);
      ended += reply->error().empty() ? 0 : 1;
    }
    return written;
  };
  int64_t ended = 0, failed = 0;
  const auto expected = written_with(model, ended);
  ASSERT_EQ(ended, 0);
  for (int64_t before = 0; before < 42; before += 3) {
    SCOPED_TRACE(before);
    const auto little = std::make_shared<NoMemoryBehind>(model, /*step=*/7, before);  // three write, and one ends soon
    int64_t ended_now = 0;
    const auto written = written_with(little, ended_now);
    failed += little->has_failed ? 1 : 0;
    ended += ended_now;
    ASSERT_LE(ended_now, 1);
    if (ended_now == 0) {
      ASSERT_EQ(written, expected);
    }
  }
  EXPECT_GT(failed, 5);
  EXPECT_LT(ended, failed) << "those whose token was about to be handed on";
}

TEST(Engine, RulesThatAllowNoTokenAreAnErrorOfTheReplyAlone) {
  const auto model = testing::tiny_model(0);
  Engine engine(model, {});
  Request request{.prompt = {1}, .max_new_tokens = 3};
  const auto good = engine.submit(request);
  for (int64_t id = 1; id < model->config.vocabulary; ++id) request.rules.bad_words_ids.push_back({id});
  request.rules.bad_words_ids.push_back({0, 0});
  const auto bad = engine.submit(request);
  EXPECT_EQ(testing::read_all(*bad).ids, (std::vector<int64_t>{0})) << "the only one that is not banned, once";
  EXPECT_EQ(bad->end(), TextEnd::kInterrupted);
  EXPECT_NE(bad->error().find("expected a token that the rules allow"), std::string::npos) << bad->error();
  EXPECT_EQ(testing::read_all(*good).ids.size(), 3U);
}

TEST(Engine, TheLastTokenIsKnownAsTheLast) {
  Engine engine(testing::tiny_model(0), {});
  const auto last_of = [&](const Request& request) {
    const auto reply = engine.submit(request);
    std::vector<bool> last;
    while (const auto token = reply->next()) last.push_back(token->is_last);
    return last;
  };
  EXPECT_EQ(last_of({.prompt = {1}, .max_new_tokens = 3}), (std::vector<bool>{false, false, true}));
  std::vector<int64_t> ends(static_cast<size_t>(engine.vocabulary()));
  std::iota(ends.begin(), ends.end(), 0);
  EXPECT_EQ(last_of({.prompt = {1}, .max_new_tokens = 3, .ends = ends}), (std::vector<bool>{true}));
}

TEST(Engine, RulesOfTheEndAreOfTheEndsOfTheRequest) {
  const auto model = testing::tiny_model(0);
  Engine engine(model, {});
  Request request{.prompt = {1, 2}, .max_new_tokens = 20};
  const std::vector<int64_t> free = testing::read_all(*engine.submit(request)).ids;
  request.ends = {free[0], free[0] + 1, int64_t{1} << 40};
  request.rules.min_new_tokens = 5;
  request.rules.bad_words_ids = {{free[0]}};  // an end, and so no word
  const testing::Written written = testing::read_all(*engine.submit(request));
  ASSERT_GT(written.ids.size(), 5U);
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_FALSE(written.ids[i] == request.ends[0] || written.ids[i] == request.ends[1]) << i;
  }
  EXPECT_EQ(written.ids, testing::written_alone(*model, request, {}).ids);
  request.rules.min_new_tokens = 0;
  EXPECT_EQ(testing::read_all(*engine.submit(request)).ids, (std::vector<int64_t>{free[0]}));
  EXPECT_EQ(testing::written_alone(*model, request, {}).ids, (std::vector<int64_t>{free[0]}));
}

TEST(Engine, AnySeedIsTaken) {
  Engine engine(testing::tiny_model(0), {});
  const auto ids_of = [&](int64_t seed) {
    const auto reply =
        engine.submit({.prompt = {1}, .max_new_tokens = 20, .sampling = {.temperature = 1}, .seed = seed});
    return testing::read_all(*reply).ids;
  };
  EXPECT_EQ(ids_of(-1), ids_of(-1));
  EXPECT_NE(ids_of(-1), ids_of(1));
  EXPECT_EQ(ids_of(std::numeric_limits<int64_t>::min()).size(), 20U);
}

TEST(Engine, ItsEndEndsAllReplies) {
  std::vector<std::shared_ptr<Reply>> replies;
  {
    Engine engine(testing::tiny_model(0), {.max_batch = 1});
    for (int i = 0; i < 3; ++i)
      replies.push_back(engine.submit({.prompt = {1}, .max_new_tokens = testing::kContext - 1}));
  }
  for (const auto& reply : replies) {
    testing::read_all(*reply);
    EXPECT_TRUE(reply->end() == TextEnd::kLength || reply->end() == TextEnd::kInterrupted);
    EXPECT_EQ(reply->error(), "") << "as after cancel()";
  }
}

TEST(Engine, AGreedyReplyOfAT5IsWhatItGenerates) {
  models::T5ForConditionalGeneration model = models::testing::small_t5();
  const at::Tensor prompt = models::testing::t5_tokens(1, 40);
  const at::Tensor expected =
      models::generate(*model, prompt, {}, {.max_new_tokens = 30, .rules = {.no_repeat_ngram_size = 2}}).sequences;
  Engine engine(std::make_shared<models::PagedT5>(model), {});
  EXPECT_EQ(engine.context(), 2048);
  const int64_t* ids = prompt.const_data_ptr<int64_t>();
  const testing::Written written = testing::read_all(*engine.submit({.prompt = {ids, ids + 40},
                                                                     .max_new_tokens = 30,
                                                                     .rules = {.no_repeat_ngram_size = 2},
                                                                     .ends = {model->config.eos_token_id}}));
  std::vector<int64_t> sequence = {model->config.decoder_start_token_id};
  sequence.insert(sequence.end(), written.ids.begin(), written.ids.end());
  const int64_t* wanted = expected.const_data_ptr<int64_t>();
  EXPECT_EQ(sequence, (std::vector<int64_t>(wanted, wanted + expected.size(1))));
  EXPECT_EQ(engine.stats().texts.read_tokens, 41) << "and the token that the decoder begins with";
}

TEST(Engine, AT5TakesAnyContextThatMemoryHasRoomFor) {
  const auto model = std::make_shared<models::PagedT5>(models::testing::small_t5());
  const int64_t page_bytes = testing::page_bytes_of(model, nn::CacheFormat::kAsGiven);
  EXPECT_THROW(Engine(model, {.max_context = 64, .memory = 2 * page_bytes}), c10::ValueError);
  EXPECT_THROW(Engine(model, {.max_context = std::numeric_limits<int64_t>::max()}), c10::ValueError);
  EXPECT_THROW(Engine(model, {.cache = nn::CacheFormat::kBf16}), c10::ValueError);
  Engine engine(model, {.max_context = 64, .memory = 3 * page_bytes});
  for (const int64_t prompt : {1, 31, 32, 33, 63}) {
    const auto reply =
        engine.submit({.prompt = std::vector<int64_t>(static_cast<size_t>(prompt), 5), .max_new_tokens = 64 - prompt});
    EXPECT_EQ(std::ssize(testing::read_all(*reply).ids), 64 - prompt);
  }
  EXPECT_EQ(engine.stats().texts.put_back, 0);
}

}  // namespace
}  // namespace plimsoll::serve
