// Random traffic: each reply has the bits that its request gets alone.
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <map>
#include <random>
#include <thread>

#include "plimsoll/io/testing.h"
#include "plimsoll/models/lora/lora.h"
#include "plimsoll/serve/engine_testing.h"

namespace plimsoll::serve {
namespace {

using models::TextEnd;

class Traffic {
 public:
  Traffic(uint64_t seed, int64_t vocabulary) : random_(seed), vocabulary_(vocabulary) {
    for (auto& start : starts_) start = tokens(90);
    std::copy_n(starts_[0].begin(), 20, starts_[1].begin());  // too few to be shared
  }

  int64_t number(int64_t from, int64_t to) { return std::uniform_int_distribution<int64_t>(from, to)(random_); }

  // Some prompts begin alike or are repeated, some are drawn and some greedy, some texts end by a token.
  Request request() {
    Request request{.prompt = prompt(), .max_new_tokens = number(1, 60), .seed = number(0, 3)};
    if (number(0, 3) == 0) request.max_new_tokens = testing::kContext - static_cast<int64_t>(request.prompt.size());
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
  std::vector<int64_t> prompt() {
    if (!prompts_.empty() && number(0, 3) == 0) {
      return prompts_[static_cast<size_t>(number(0, std::ssize(prompts_) - 1))];
    }
    std::vector<int64_t> prompt = tokens(number(1, 40));
    if (number(0, 2) == 0) {
      const std::vector<int64_t>& start = starts_[static_cast<size_t>(number(0, 1))];
      prompt.insert(prompt.begin(), start.begin(), start.begin() + number(1, 60));
    }
    return prompts_.emplace_back(prompt);
  }

  std::vector<int64_t> tokens(int64_t count) {
    std::vector<int64_t> ids(static_cast<size_t>(count));
    for (int64_t& id : ids) id = number(0, vocabulary_ - 1);
    return ids;
  }

  std::mt19937_64 random_;
  const int64_t vocabulary_;
  std::vector<int64_t> starts_[2];
  std::vector<std::vector<int64_t>> prompts_;  // so far
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
    const auto drawn = testing::tiny_model(family);
    models::add_lora(*drawn, options);
    for (const auto& parameter : drawn->named_parameters()) {
      const at::NoGradGuard no_grad;
      if (parameter.key().ends_with("_B")) at::Tensor(parameter.value()).normal_(0, 0.3);
    }
    const io::TemporaryDirectory directory;
    models::save_adapter(*drawn, directory.path());
    const auto alone = testing::tiny_model(family, codes);
    models::load_adapter(*alone, directory.path());
    result[name] = {models::read_adapter(base, directory.path()), alone};
  }
  return result;
}

struct TrafficCounts {
  SchedulerCounts texts;
  int64_t ended_by_token = 0, cancelled = 0;
};

using Alone = std::function<testing::Written(const Request&)>;

// names: of adapters, which the requests have in turn.
TrafficCounts expect_traffic_has_bits_alone(const std::shared_ptr<models::PagedModel>& model, int64_t vocabulary,
                                            EngineOptions options, int64_t requests, int64_t pages,
                                            const std::vector<std::string>& names, const Alone& written_alone) {
  Traffic traffic(11, vocabulary);
  options.memory = pages * testing::page_bytes_of(model, options.cache);
  TrafficCounts counts;
  std::vector<Request> asked;
  std::vector<testing::Written> written;
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
    for (const auto& reply : replies) {
      written.push_back(testing::read_all(*reply));
      EXPECT_EQ(reply->error(), "");
    }
    // A reply ends before the step that wrote its last token.
    while (engine.stats().texts.running > 0) std::this_thread::yield();
    counts.texts = engine.stats().texts;
  }
  for (size_t i = 0; i < asked.size(); ++i) {
    SCOPED_TRACE("request " + std::to_string(i));
    testing::Written alone = written_alone(asked[i]);
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

TrafficCounts expect_traffic_has_bits_alone(const std::shared_ptr<models::DecoderImpl>& model, EngineOptions options,
                                            int64_t requests, int64_t pages, const TestAdapters& adapters = {}) {
  std::vector<std::string> names = {""};
  for (const auto& [name, adapter] : adapters) {
    names.push_back(name);
    options.adapters[name] = adapter.served;
  }
  return expect_traffic_has_bits_alone(
      model, model->config.vocabulary, options, requests, pages, names, [&](const Request& request) {
        const auto adapter = adapters.find(request.adapter);
        return testing::written_alone(adapter == adapters.end() ? *model : *adapter->second.alone, request, options);
      });
}

// max_context: so that a request of a whole context fits.
TrafficCounts expect_traffic_has_bits_alone(models::T5ForConditionalGeneration model, EngineOptions options,
                                            int64_t requests, int64_t pages) {
  options.max_context = testing::kContext;
  return expect_traffic_has_bits_alone(std::make_shared<models::PagedT5>(model), model->config.vocab_size, options,
                                       requests, pages, {""},
                                       [&](const Request& request) { return testing::written_alone(*model, request); });
}

// Requests of unlike lengths and adapters, at random times, some cancelled, in memory for few.
TEST(EngineTraffic, TwoHundredRandomRequestsHaveTheBitsOfEachAlone) {
  const auto model = testing::tiny_model(0);
  const TestAdapters adapters = test_adapters(0, /*codes=*/false, *model);
  const TrafficCounts counts = expect_traffic_has_bits_alone(model, {.max_batch = 8}, 200, 9, adapters);
  EXPECT_GT(counts.texts.put_back, 0);
  EXPECT_GT(counts.ended_by_token, 0);
  EXPECT_GT(counts.cancelled, 0);
  EXPECT_EQ(counts.texts.running, 0);
  EXPECT_EQ(counts.texts.waiting, 0);
  EXPECT_EQ(counts.texts.used_pages, counts.texts.kept_pages);
}

TEST(EngineTraffic, TrafficThatSharesPromptsHasTheBitsOfEachRequestAlone) {
  const TrafficCounts counts = expect_traffic_has_bits_alone(testing::tiny_model(0), {.max_batch = 8}, 40, 60);
  EXPECT_GT(counts.texts.shared_tokens, 0);
}

TEST(EngineTraffic, TokensTakenFromPagesHaveTheBitsOfThoseThatAreRead) {
  for (const nn::CacheFormat cache : {nn::CacheFormat::kAsGiven, nn::CacheFormat::kE4m3}) {
    const auto model = testing::tiny_model(0);
    std::vector<Request> requests(4, {.max_new_tokens = 8, .top_log_probabilities = 0});
    for (int64_t i = 0; i < 100; ++i) requests[0].prompt.push_back(i * i % model->config.vocabulary);
    const std::vector<int64_t>& start = requests[0].prompt;
    requests[1].prompt.assign(start.begin(), start.begin() + 70);
    requests[2].prompt = start;
    for (int64_t i = 0; i < 10; ++i) requests[2].prompt.push_back(i);
    requests[3].prompt = start;
    std::vector<testing::Written> written;
    {
      Engine engine(model, {.cache = cache});
      for (const Request& request : requests) written.push_back(testing::read_all(*engine.submit(request)));
      while (engine.stats().texts.running > 0) std::this_thread::yield();
      EXPECT_EQ(engine.stats().texts.shared_tokens, 64 + 96 + 96);
    }
    for (size_t i = 0; i < requests.size(); ++i) {
      const testing::Written alone = testing::written_alone(*model, requests[i], {.cache = cache});
      EXPECT_EQ(written[i].ids, alone.ids) << "request " << i;
      EXPECT_EQ(written[i].log_probabilities, alone.log_probabilities) << "request " << i;
    }
  }
}

TEST(EngineTraffic, TrafficHasTheBitsOfEachRequestAloneForEveryFamilyAndCache) {
  for (size_t family = 0; family < models::decoder_traits().size(); ++family) {
    SCOPED_TRACE(models::decoder_traits()[family].model_type);
    for (const nn::CacheFormat cache : {nn::CacheFormat::kAsGiven, nn::CacheFormat::kE4m3}) {
      expect_traffic_has_bits_alone(testing::tiny_model(family, /*codes=*/cache == nn::CacheFormat::kE4m3),
                                    {.max_batch = 4, .cache = cache}, 12, 10);
    }
  }
}

TEST(EngineTraffic, TrafficOfSeveralAdaptersHasTheBitsOfEachRequestAlone) {
  for (const bool codes : {false, true}) {
    const auto model = testing::tiny_model(0, codes);
    const TestAdapters adapters = test_adapters(0, codes, *model);
    const TrafficCounts little = expect_traffic_has_bits_alone(model, {.max_batch = 8}, 60, 9, adapters);
    EXPECT_GT(little.texts.put_back, 0);
    EXPECT_GT(little.cancelled, 0);
    EXPECT_EQ(little.texts.used_pages, little.texts.kept_pages);
    const TrafficCounts much = expect_traffic_has_bits_alone(model, {.max_batch = 8}, 60, 90, adapters);
    EXPECT_GT(much.texts.shared_tokens, 0);
  }
}

TEST(EngineTraffic, TrafficOfSeveralAdaptersHasTheBitsOfEachRequestAloneForEveryFamilyAndUnderARecipe) {
  for (size_t family = 0; family < models::decoder_traits().size(); ++family) {
    SCOPED_TRACE(models::decoder_traits()[family].model_type);
    const auto model = testing::tiny_model(family);
    const TestAdapters adapters = test_adapters(family, false, *model);
    expect_traffic_has_bits_alone(model, {.max_batch = 4}, 9, 10, adapters);
    if (family > 0) continue;
    expect_traffic_has_bits_alone(model, {.max_batch = 4, .recipe = recipe::by_name("fp8-row")}, 9, 10, adapters);
  }
}

TEST(EngineTraffic, TextsOfUnlikeAdaptersShareNoPages) {
  const auto model = testing::tiny_model(0);
  const TestAdapters adapters = test_adapters(0, false, *model);
  EngineOptions options;
  for (const auto& [name, adapter] : adapters) options.adapters[name] = adapter.served;
  Request request{.max_new_tokens = 8, .top_log_probabilities = 0};
  for (int64_t i = 0; i < 100; ++i) request.prompt.push_back(i * i % model->config.vocabulary);
  std::vector<testing::Written> written;
  {
    Engine engine(model, options);
    for (const std::string name : {"", "large", "small", "", "large", "small"}) {
      const int64_t before = engine.stats().texts.shared_tokens;
      request.adapter = name;
      written.push_back(testing::read_all(*engine.submit(request)));
      while (engine.stats().texts.running > 0) std::this_thread::yield();
      EXPECT_EQ(engine.stats().texts.shared_tokens - before, written.size() > 3 ? 96 : 0);
    }
  }
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(written[i].log_probabilities, written[i + 3].log_probabilities);
    EXPECT_NE(written[i].log_probabilities, written[(i + 1) % 3].log_probabilities);
  }
}

TEST(EngineTraffic, TrafficUnderARecipeHasTheBitsOfEachRequestAlone) {
  expect_traffic_has_bits_alone(testing::tiny_model(0), {.max_batch = 4, .recipe = recipe::by_name("fp8-row")}, 20, 10);
}

TEST(EngineTraffic, TrafficOfAT5HasTheBitsOfEachRequestAlone) {
  models::T5ForConditionalGeneration model = models::testing::small_t5(models::testing::t5_kinds()[1]);
  model->to(at::kBFloat16);
  const TrafficCounts counts = expect_traffic_has_bits_alone(model, {.max_batch = 8}, 150, 12);
  EXPECT_GT(counts.texts.put_back, 0);
  EXPECT_GT(counts.ended_by_token, 0);
  EXPECT_GT(counts.cancelled, 0);
  EXPECT_EQ(counts.texts.running, 0);
  EXPECT_EQ(counts.texts.waiting, 0);
  EXPECT_EQ(counts.texts.used_pages, counts.texts.kept_pages);
  const TrafficCounts much = expect_traffic_has_bits_alone(model, {.max_batch = 8}, 60, 200);
  EXPECT_GT(much.texts.shared_tokens, 0);
  EXPECT_EQ(much.texts.put_back, 0);
}

TEST(EngineTraffic, AT5EncodesEqualPromptsOnceAndItsRepliesHaveTheBitsOfEachAlone) {
  models::T5ForConditionalGeneration model = models::testing::small_t5(models::testing::t5_kinds()[1]);
  model->to(at::kBFloat16);
  std::vector<Request> requests;
  for (int64_t i = 0; i < 12; ++i) {
    requests.push_back({.max_new_tokens = 40, .seed = i / 3, .choice = i % 3, .top_log_probabilities = 0});
    requests.back().sampling.temperature = static_cast<double>(i % 2);
    for (int64_t token = 0; token < 40 + i % 2; ++token) requests.back().prompt.push_back(token * token % 80);
  }
  std::vector<testing::Written> written;
  {
    Engine engine(std::make_shared<models::PagedT5>(model), {.max_batch = 6});
    for (int64_t from : {0, 6}) {  // the second half after the first has ended
      std::vector<std::shared_ptr<Reply>> replies;
      for (int64_t i = from; i < from + 6; ++i) replies.push_back(engine.submit(requests[static_cast<size_t>(i)]));
      for (const auto& reply : replies) written.push_back(testing::read_all(*reply));
      while (engine.stats().texts.running > 0) std::this_thread::yield();
    }
    EXPECT_EQ(engine.stats().texts.read_tokens, 40 + 41 + 12);
    EXPECT_EQ(engine.stats().texts.shared_tokens, 5 * (40 + 41));
    EXPECT_EQ(engine.stats().texts.used_pages, engine.stats().texts.kept_pages);
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    const testing::Written alone = testing::written_alone(*model, requests[i]);
    EXPECT_EQ(written[i].ids, alone.ids) << "request " << i;
    EXPECT_EQ(written[i].log_probabilities, alone.log_probabilities) << "request " << i;
  }
}

TEST(EngineTraffic, TrafficOfEveryKindOfT5HasTheBitsOfEachRequestAlone) {
  for (const models::T5Config& kind : models::testing::t5_kinds()) {
    models::T5ForConditionalGeneration values = models::testing::small_t5(kind);
    expect_traffic_has_bits_alone(values, {.max_batch = 4}, 20, 9);
    models::T5ForConditionalGeneration codes = models::testing::small_t5(kind);
    models::testing::hold_codes(*codes, ops::CodeKind::kE4m3Rows);
    expect_traffic_has_bits_alone(codes, {.max_batch = 4}, 20, 9);
  }
}

// Steps of a few texts lack memory, and some of two; those of one never do.
TEST(EngineTraffic, TrafficForWhoseStepsMemoryIsLackingHasTheBitsOfEachRequestAlone) {
  const auto lacking = [](std::shared_ptr<models::PagedModel> model) {
    return std::make_shared<testing::LittleMemory>(std::move(model),
                                                   [steps = 0](std::span<const models::TextTokens> texts) mutable {
                                                     return texts.size() > (++steps % 5 == 0 ? 1U : 3U);
                                                   });
  };
  const auto decoder = testing::tiny_model(0);
  const auto little = lacking(decoder);
  const TrafficCounts counts = expect_traffic_has_bits_alone(
      little, decoder->config.vocabulary, {.max_batch = 8}, 60, 60, {""},
      [&](const Request& request) { return testing::written_alone(*decoder, request, {}); });
  EXPECT_GT(little->failed_steps, 20);
  EXPECT_GE(counts.texts.put_back, little->failed_steps) << "each step gives way to one with a text less";
  EXPECT_EQ(counts.texts.used_pages, counts.texts.kept_pages);

  models::T5ForConditionalGeneration t5 = models::testing::small_t5(models::testing::t5_kinds()[1]);
  t5->to(at::kBFloat16);
  const auto little_t5 = lacking(std::make_shared<models::PagedT5>(t5));
  expect_traffic_has_bits_alone(little_t5, t5->config.vocab_size, {.max_batch = 8, .max_context = testing::kContext},
                                60, 60, {""},
                                [&](const Request& request) { return testing::written_alone(*t5, request); });
  EXPECT_GT(little_t5->failed_steps, 20);
}

// A team leaves these steps to the layers.
TEST(EngineTraffic, TrafficOfAT5UnderFixesOrAWatchHasTheBitsOfEachRequestAlone) {
  models::T5ForConditionalGeneration model = models::testing::small_t5(models::testing::t5_kinds()[1]);
  model->to(at::kHalf);
  const TrafficCounts watched =
      expect_traffic_has_bits_alone(model, {.max_batch = 8, .watch = watch::Mode::kGuard}, 60, 9);
  EXPECT_GT(watched.texts.put_back, 0);
  model->numerics = models::T5Fixes::seed();
  const TrafficCounts fixed = expect_traffic_has_bits_alone(model, {.max_batch = 8}, 60, 9);
  EXPECT_GT(fixed.texts.put_back, 0);
}

}  // namespace
}  // namespace plimsoll::serve
