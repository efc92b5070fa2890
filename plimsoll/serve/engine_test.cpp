#include "plimsoll/serve/engine.h"

#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "plimsoll/amp/fp8_autocast.h"
#include "plimsoll/io/testing.h"
#include "plimsoll/models/decoder/model.h"
#include "plimsoll/models/decoder/testing.h"
#include "plimsoll/models/lora/lora.h"
#include "plimsoll/models/next_token.h"
#include "plimsoll/nn/held_codes.h"
#include "plimsoll/nn/testing.h"
#include "plimsoll/runtime/philox.h"

namespace plimsoll::serve {
namespace {

using models::TextEnd;

constexpr int64_t kContext = 160;

std::shared_ptr<models::DecoderImpl> tiny_model(size_t family, bool codes = false) {
  at::manual_seed(7);
  models::DecoderConfig config = models::testing::small_decoder(models::decoder_traits()[family]);
  config.context = kContext;
  models::Decoder model(config);
  nn::testing::randomize(*model);
  model->to(at::kBFloat16);
  if (codes) nn::hold_codes(*model);
  model->eval();
  return model.ptr();
}

int64_t page_bytes_of(const std::shared_ptr<models::LanguageModel>& model, nn::CacheFormat cache) {
  return Engine(model, {.cache = cache}).stats().page_bytes;
}

struct Written {
  std::vector<int64_t> ids;
  std::vector<double> log_probabilities;
  TextEnd end = TextEnd::kLength;
};

// The reply that the request gets alone, by the engine of `plimsoll generate`.
Written written_alone(models::LanguageModel& model, const Request& request, const EngineOptions& options) {
  models::DecodingOptions decoding_options{
      .sampling = request.sampling, .rules = request.rules, .eos_token_ids = request.ends, .cache = options.cache};
  decoding_options.uniform = [&](int64_t, int64_t new_tokens) {
    const runtime::Philox philox{.seed = static_cast<uint64_t>(request.seed),
                                 .step = static_cast<uint64_t>(request.choice)};
    return philox.word(static_cast<uint64_t>(new_tokens)) * 0x1p-32;
  };
  models::Decoding decoding(model, decoding_options);
  decoding.begin({request.prompt}, request.max_new_tokens);
  Written written;
  while (!decoding.done()) {
    std::optional<amp::Fp8Autocast> scope;
    if (options.recipe) scope.emplace(amp::Fp8AutocastOptions{.recipe = *options.recipe});
    decoding.step([&](const models::NewToken& token) {
      written.ids.push_back(token.id);
      written.log_probabilities.push_back(models::log_probability(token.logits, token.id));
      return false;
    });
  }
  written.end = decoding.end(0);
  return written;
}

Written read_all(Reply& reply) {
  Written written;
  while (const auto token = reply.next()) {
    written.ids.push_back(token->token.id);
    written.log_probabilities.push_back(token->token.log_probability);
  }
  written.end = reply.end();
  return written;
}

class Traffic {
 public:
  Traffic(uint64_t seed, int64_t vocabulary) : random_(seed), vocabulary_(vocabulary) {
    for (auto& start : starts_) start = tokens(90);
    std::copy_n(starts_[0].begin(), 20, starts_[1].begin());  // too few to be shared
  }

  int64_t number(int64_t from, int64_t to) { return std::uniform_int_distribution<int64_t>(from, to)(random_); }

  // Some prompts begin alike, some are drawn and some greedy, some texts end by a token.
  Request request() {
    Request request{.prompt = tokens(number(1, 40)), .max_new_tokens = number(1, 60), .seed = number(0, 3)};
    if (number(0, 2) == 0) {
      const std::vector<int64_t>& start = starts_[static_cast<size_t>(number(0, 1))];
      request.prompt.insert(request.prompt.begin(), start.begin(), start.begin() + number(1, 60));
    }
    if (number(0, 3) == 0) request.max_new_tokens = kContext - static_cast<int64_t>(request.prompt.size());
    request.choice = number(0, 1);
    request.top_log_probabilities = number(0, 3);
    if (number(0, 1) == 0) {
      request.sampling = {.temperature = 0.25 * static_cast<double>(number(1, 8)),
                          .top_k = number(0, 1) * 50,
                          .top_p = number(0, 1) == 0 ? 1.0 : 0.9,
                          .min_p = number(0, 1) == 0 ? 0.0 : 0.01};
    }
    if (number(0, 3) == 0) request.rules = {.repetition_penalty = 1.3, .frequency_penalty = 0.5};
    if (number(0, 3) == 0) request.ends = tokens(vocabulary_ / 20);
    return request;
  }

 private:
  std::vector<int64_t> tokens(int64_t count) {
    std::vector<int64_t> ids(static_cast<size_t>(count));
    for (int64_t& id : ids) id = number(0, vocabulary_ - 1);
    return ids;
  }

  std::mt19937_64 random_;
  const int64_t vocabulary_;
  std::vector<int64_t> starts_[2];
};

// An adapter as the engine has it, and the model that has it alone.
struct TestAdapter {
  std::shared_ptr<const nn::LoraSet> served;
  std::shared_ptr<models::DecoderImpl> alone;
};
using TestAdapters = std::map<std::string, TestAdapter>;

TestAdapters test_adapters(size_t family, bool codes, const models::LanguageModel& base) {
  TestAdapters result;
  for (const auto& [name, options] : std::map<std::string, models::LoraOptions>{
           {"large", {.adapters = {.rank = 7, .alpha = 9}}}, {"small", {.adapters = {.rank = 2, .alpha = 4}}}}) {
    const auto drawn = tiny_model(family);
    models::add_lora(*drawn, options);
    for (const auto& parameter : drawn->named_parameters()) {
      const at::NoGradGuard no_grad;
      if (parameter.key().ends_with("_B")) at::Tensor(parameter.value()).normal_(0, 0.3);
    }
    const io::TemporaryDirectory directory;
    models::save_adapter(*drawn, directory.path());
    const auto alone = tiny_model(family, codes);
    models::load_adapter(*alone, directory.path());
    result[name] = {models::read_adapter(base, directory.path()), alone};
  }
  return result;
}

struct TrafficCounts {
  SchedulerCounts texts;
  int64_t ended_by_token = 0, cancelled = 0;
};

TrafficCounts expect_traffic_has_bits_alone(const std::shared_ptr<models::DecoderImpl>& model, EngineOptions options,
                                            int64_t requests, int64_t pages, const TestAdapters& adapters = {}) {
  Traffic traffic(11, model->config.vocabulary);
  std::vector<std::string> names = {""};
  for (const auto& [name, adapter] : adapters) {
    names.push_back(name);
    options.adapters[name] = adapter.served;
  }
  options.memory = pages * page_bytes_of(model, options.cache);
  TrafficCounts counts;
  std::vector<Request> asked;
  std::vector<Written> written;
  {
    Engine engine(model, options);
    std::vector<std::shared_ptr<Reply>> replies;
    for (int64_t i = 0; i < requests; ++i) {
      asked.push_back(traffic.request());
      asked.back().adapter = names[static_cast<size_t>(i) % names.size()];
      replies.push_back(engine.submit(asked.back()));
      if (traffic.number(0, 7) == 0) std::this_thread::sleep_for(std::chrono::milliseconds(traffic.number(0, 5)));
      if (traffic.number(0, 9) == 0) replies[static_cast<size_t>(traffic.number(0, i))]->cancel();
      if (traffic.number(0, 9) == 0) replies.back()->cancel();  // has hardly begun
    }
    for (const auto& reply : replies) written.push_back(read_all(*reply));
    // A reply ends before the step that wrote its last token.
    while (engine.stats().texts.running > 0) std::this_thread::yield();
    counts.texts = engine.stats().texts;
  }
  for (size_t i = 0; i < asked.size(); ++i) {
    SCOPED_TRACE("request " + std::to_string(i));
    const auto adapter = adapters.find(asked[i].adapter);
    Written alone = written_alone(adapter == adapters.end() ? *model : *adapter->second.alone, asked[i], options);
    counts.ended_by_token += written[i].end == TextEnd::kToken;
    if (written[i].end == TextEnd::kInterrupted) {
      ++counts.cancelled;
      EXPECT_LE(written[i].ids.size(), alone.ids.size());
      alone.ids.resize(written[i].ids.size());
      alone.log_probabilities.resize(written[i].ids.size());
    } else {
      EXPECT_EQ(written[i].end, alone.end);
    }
    EXPECT_EQ(written[i].ids, alone.ids);
    EXPECT_EQ(written[i].log_probabilities, alone.log_probabilities);
  }
  return counts;
}

TEST(Engine, RandomTrafficHasTheBitsOfEachRequestAlone) {
  const TrafficCounts counts = expect_traffic_has_bits_alone(tiny_model(0), {.max_batch = 8}, 100, 9);
  EXPECT_GT(counts.texts.put_back, 0);
  EXPECT_GT(counts.ended_by_token, 0);
  EXPECT_GT(counts.cancelled, 0);
  EXPECT_EQ(counts.texts.running, 0);
  EXPECT_EQ(counts.texts.waiting, 0);
  EXPECT_EQ(counts.texts.used_pages, counts.texts.kept_pages);
}

TEST(Engine, TrafficThatSharesPromptsHasTheBitsOfEachRequestAlone) {
  const TrafficCounts counts = expect_traffic_has_bits_alone(tiny_model(0), {.max_batch = 8}, 40, 60);
  EXPECT_GT(counts.texts.shared_tokens, 0);
}

TEST(Engine, TokensTakenFromPagesHaveTheBitsOfThoseThatAreRead) {
  for (const nn::CacheFormat cache : {nn::CacheFormat::kAsGiven, nn::CacheFormat::kE4m3}) {
    const auto model = tiny_model(0);
    std::vector<Request> requests(4, {.max_new_tokens = 8, .top_log_probabilities = 0});
    for (int64_t i = 0; i < 100; ++i) requests[0].prompt.push_back(i * i % model->config.vocabulary);
    const std::vector<int64_t>& start = requests[0].prompt;
    requests[1].prompt.assign(start.begin(), start.begin() + 70);
    requests[2].prompt = start;
    for (int64_t i = 0; i < 10; ++i) requests[2].prompt.push_back(i);
    requests[3].prompt = start;
    std::vector<Written> written;
    {
      Engine engine(model, {.cache = cache});
      for (const Request& request : requests) written.push_back(read_all(*engine.submit(request)));
      while (engine.stats().texts.running > 0) std::this_thread::yield();
      EXPECT_EQ(engine.stats().texts.shared_tokens, 64 + 96 + 96);
    }
    for (size_t i = 0; i < requests.size(); ++i) {
      const Written alone = written_alone(*model, requests[i], {.cache = cache});
      EXPECT_EQ(written[i].ids, alone.ids) << "request " << i;
      EXPECT_EQ(written[i].log_probabilities, alone.log_probabilities) << "request " << i;
    }
  }
}

TEST(Engine, TrafficHasTheBitsOfEachRequestAloneForEveryFamilyAndCache) {
  for (size_t family = 0; family < models::decoder_traits().size(); ++family) {
    SCOPED_TRACE(models::decoder_traits()[family].model_type);
    for (const nn::CacheFormat cache : {nn::CacheFormat::kAsGiven, nn::CacheFormat::kE4m3}) {
      expect_traffic_has_bits_alone(tiny_model(family, /*codes=*/cache == nn::CacheFormat::kE4m3),
                                    {.max_batch = 4, .cache = cache}, 12, 10);
    }
  }
}

TEST(Engine, TrafficOfSeveralAdaptersHasTheBitsOfEachRequestAlone) {
  for (const bool codes : {false, true}) {
    const auto model = tiny_model(0, codes);
    const TestAdapters adapters = test_adapters(0, codes, *model);
    const TrafficCounts little = expect_traffic_has_bits_alone(model, {.max_batch = 8}, 60, 9, adapters);
    EXPECT_GT(little.texts.put_back, 0);
    EXPECT_GT(little.cancelled, 0);
    EXPECT_EQ(little.texts.used_pages, little.texts.kept_pages);
    const TrafficCounts much = expect_traffic_has_bits_alone(model, {.max_batch = 8}, 60, 90, adapters);
    EXPECT_GT(much.texts.shared_tokens, 0);
  }
}

TEST(Engine, TrafficOfSeveralAdaptersHasTheBitsOfEachRequestAloneForEveryFamilyAndUnderARecipe) {
  for (size_t family = 0; family < models::decoder_traits().size(); ++family) {
    SCOPED_TRACE(models::decoder_traits()[family].model_type);
    const auto model = tiny_model(family);
    const TestAdapters adapters = test_adapters(family, false, *model);
    expect_traffic_has_bits_alone(model, {.max_batch = 4}, 9, 10, adapters);
    if (family > 0) continue;
    expect_traffic_has_bits_alone(model, {.max_batch = 4, .recipe = recipe::by_name("fp8-row")}, 9, 10, adapters);
  }
}

TEST(Engine, TextsOfUnlikeAdaptersShareNoPages) {
  const auto model = tiny_model(0);
  const TestAdapters adapters = test_adapters(0, false, *model);
  EngineOptions options;
  for (const auto& [name, adapter] : adapters) options.adapters[name] = adapter.served;
  Request request{.max_new_tokens = 8, .top_log_probabilities = 0};
  for (int64_t i = 0; i < 100; ++i) request.prompt.push_back(i * i % model->config.vocabulary);
  std::vector<Written> written;
  {
    Engine engine(model, options);
    for (const std::string name : {"", "large", "small", "", "large", "small"}) {
      const int64_t before = engine.stats().texts.shared_tokens;
      request.adapter = name;
      written.push_back(read_all(*engine.submit(request)));
      while (engine.stats().texts.running > 0) std::this_thread::yield();
      EXPECT_EQ(engine.stats().texts.shared_tokens - before, written.size() > 3 ? 96 : 0);
    }
  }
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(written[i].log_probabilities, written[i + 3].log_probabilities);
    EXPECT_NE(written[i].log_probabilities, written[(i + 1) % 3].log_probabilities);
  }
}

TEST(Engine, TrafficUnderARecipeHasTheBitsOfEachRequestAlone) {
  expect_traffic_has_bits_alone(tiny_model(0), {.max_batch = 4, .recipe = recipe::by_name("fp8-row")}, 20, 10);
}

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
  const auto model = tiny_model(0);
  const auto format = short_format(model->config.vocabulary);
  std::vector<Request> requests;
  for (int64_t i = 0; i < 30; ++i) {
    requests.push_back(
        {.prompt = {1 + i, 2, 3}, .max_new_tokens = kContext - 3, .sampling = {.temperature = 1}, .ends = {300}});
    requests.back().seed = i;
    requests.back().top_log_probabilities = 0;
    if (i % 10 != 9) requests.back().format = format;
  }
  const auto written_by = [&](const EngineOptions& options) {
    Engine engine(model, options);
    std::vector<std::shared_ptr<Reply>> replies;
    std::vector<Written> written;
    for (const Request& request : requests) replies.push_back(engine.submit(request));
    for (const auto& reply : replies) written.push_back(read_all(*reply));
    EXPECT_EQ(engine.stats().texts.put_back > 0, options.max_batch > 1);
    return written;
  };
  const int64_t page_bytes = page_bytes_of(model, nn::CacheFormat::kAsGiven);
  const std::vector<Written> alone = written_by({.max_batch = 1});
  const std::vector<Written> together = written_by({.max_batch = 8, .memory = 6 * page_bytes});
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
  const auto model = tiny_model(0);
  Engine engine(model, {});
  EXPECT_THROW(engine.submit({.prompt = {1}, .format = short_format(model->config.vocabulary - 1)}), c10::ValueError);
}

TEST(Engine, TopLogProbabilitiesAreThoseOfTheLikeliestTokens) {
  Engine engine(tiny_model(0), {});
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
  const auto model = tiny_model(0);
  const int64_t page_bytes = page_bytes_of(model, nn::CacheFormat::kAsGiven);
  EXPECT_THROW(Engine(model, {.memory = 4 * page_bytes}), c10::ValueError) << "of 160 tokens, five pages";
  EXPECT_THROW(Engine(model, {.max_batch = 0}), c10::ValueError);
  EXPECT_THROW(Engine(model, {.queue = 0}), c10::ValueError);
  Engine engine(model, {.memory = 5 * page_bytes});
  EXPECT_THROW(engine.submit({}), c10::ValueError);
  EXPECT_THROW(engine.submit({.prompt = {-1}}), c10::ValueError);
  EXPECT_THROW(engine.submit({.prompt = {model->config.vocabulary}}), c10::ValueError);
  EXPECT_THROW(engine.submit({.prompt = {1}, .max_new_tokens = 0}), c10::ValueError);
  EXPECT_THROW(engine.submit({.prompt = {1}, .max_new_tokens = kContext}), c10::ValueError);
  EXPECT_THROW(engine.submit({.prompt = {1}, .sampling = {.temperature = -1}}), c10::ValueError);
  EXPECT_THROW(engine.submit({.prompt = {1}, .rules = {.repetition_penalty = 0}}), c10::ValueError);
  EXPECT_THROW(engine.submit({.prompt = {1}, .adapter = "unknown"}), c10::ValueError);
  EXPECT_EQ(read_all(*engine.submit({.prompt = {1}, .max_new_tokens = kContext - 1})).ids.size(),
            static_cast<size_t>(kContext - 1));
}

TEST(Engine, AFullQueueRefusesAndACancelledRequestMakesRoom) {
  Engine engine(tiny_model(0), {.max_batch = 1, .queue = 2});
  const Request request{.prompt = {1, 2}, .max_new_tokens = kContext - 2};
  std::vector<std::shared_ptr<Reply>> replies;
  for (int i = 0; i < 3; ++i) replies.push_back(engine.submit(request));
  EXPECT_THROW(engine.submit(request), QueueFull);
  for (const auto& reply : replies) reply->cancel();
  for (const auto& reply : replies) read_all(*reply);
  while (engine.stats().texts.running + engine.stats().texts.waiting > 0) std::this_thread::yield();
  EXPECT_EQ(read_all(*engine.submit(request)).end, TextEnd::kLength);
}

TEST(Engine, ACancelledReplyEndsBeforeTheNextStep) {
  Engine engine(tiny_model(0), {});
  const auto reply = engine.submit({.prompt = {1, 2}, .max_new_tokens = kContext - 2});
  ASSERT_TRUE(reply->next());
  reply->cancel();
  const int64_t steps = engine.stats().steps;
  read_all(*reply);
  EXPECT_EQ(reply->end(), TextEnd::kInterrupted);
  EXPECT_LE(engine.stats().steps, steps + 2) << "the one under way, and one that ended between the lines above";
}

TEST(Engine, LogitsThatAreNotFiniteEndTheReplyAlone) {
  const auto model = tiny_model(0);
  const at::NoGradGuard no_grad;
  model->token_embedding->weight[5].fill_(std::numeric_limits<float>::quiet_NaN());
  if (model->head.is_empty()) GTEST_SKIP() << "a tied head would make every logit of token 5 NaN";
  Engine engine(model, {});
  const auto bad = engine.submit({.prompt = {1, 5}, .max_new_tokens = 3});
  const auto good = engine.submit({.prompt = {1, 2}, .max_new_tokens = 3, .rules = {.bad_words_ids = {{5}}}});
  EXPECT_EQ(read_all(*bad).end, TextEnd::kNotFinite);
  EXPECT_EQ(read_all(*good).ids.size(), 3U);
}

TEST(Engine, RulesThatAllowNoTokenAreAnErrorOfTheReplyAlone) {
  const auto model = tiny_model(0);
  Engine engine(model, {});
  Request request{.prompt = {1}, .max_new_tokens = 3};
  const auto good = engine.submit(request);
  for (int64_t id = 0; id < model->config.vocabulary; ++id) request.rules.bad_words_ids.push_back({id});
  request.rules.bad_words_ids.push_back({0, 0});
  const auto bad = engine.submit(request);
  EXPECT_EQ(read_all(*bad).ids, (std::vector<int64_t>{0})) << "the only one that is not banned, once";
  EXPECT_EQ(bad->end(), TextEnd::kInterrupted);
  EXPECT_NE(bad->error().find("expected a token that the rules allow"), std::string::npos) << bad->error();
  EXPECT_EQ(read_all(*good).ids.size(), 3U);
}

TEST(Engine, ItsEndEndsAllReplies) {
  std::vector<std::shared_ptr<Reply>> replies;
  {
    Engine engine(tiny_model(0), {.max_batch = 1});
    for (int i = 0; i < 3; ++i) replies.push_back(engine.submit({.prompt = {1}, .max_new_tokens = kContext - 1}));
  }
  for (const auto& reply : replies) {
    read_all(*reply);
    EXPECT_TRUE(reply->end() == TextEnd::kLength || reply->error() == "the server stops") << reply->error();
  }
}

}  // namespace
}  // namespace plimsoll::serve
