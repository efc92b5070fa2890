#include "plimsoll/serve/http/completion.h"

#include <gtest/gtest.h>

#include "plimsoll/serve/engine_testing.h"
#include "plimsoll/serve/http/json_formats.h"
#include "plimsoll/tokenize/byte_tokenizer.h"

namespace plimsoll::serve {
namespace {

// A model whose step waits until the tokens of those before have been sent.
class SentBefore : public testing::LittleMemory {
 public:
  explicit SentBefore(std::shared_ptr<models::PagedModel> model)
      : LittleMemory(std::move(model), [](std::span<const models::TextTokens>) { return false; }) {}

  at::Tensor extend_texts(std::span<const models::TextTokens> texts) override {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait_for(lock, std::chrono::seconds(10), [&] { return sent_ >= steps_; });
      ++steps_;
    }
    return LittleMemory::extend_texts(texts);
  }

  void count_sent() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      ++sent_;
    }
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t steps_ = 0, sent_ = 0;
};

class CompletionTest : public ::testing::Test {
 protected:
  static app::ServedTexts texts_of_bytes() {
    app::ServedTexts texts;
    texts.tokenizer = std::make_unique<tokenize::ByteTokenizer>();
    return texts;
  }
  // A request whose reply is of bytes.
  Request request(int64_t tokens) const {
    Request request{.prompt = {'a'}, .max_new_tokens = tokens};
    for (int64_t id = tokenize::kByteVocabulary; id < vocabulary_; ++id) request.rules.bad_words_ids.push_back({id});
    return request;
  }
  ServedModel served() { return {.name = "tiny", .model = texts_, .formats = formats_}; }

  const std::shared_ptr<models::DecoderImpl> model_ = testing::tiny_model(0);
  const int64_t vocabulary_ = model_->config.vocabulary;
  const app::ServedTexts texts_ = texts_of_bytes();
  JsonFormats formats_{*texts_.tokenizer, vocabulary_};
};

TEST_F(CompletionTest, TokensOfAChoiceAreSentWhileAnotherWaits) {
  constexpr int64_t kTokens = 150;
  const auto model = std::make_shared<SentBefore>(model_);
  Engine engine(model, {.max_batch = 1});
  const ServedModel served = this->served();
  CompletionRequest wanted{.request = request(kTokens), .choices = 2};
  wanted.request.top_log_probabilities = 0;  // an event for each token
  Completion completion(engine, served, wanted);
  const auto start = std::chrono::steady_clock::now();
  int64_t events = 0;
  const auto send = [&](const std::string&) {
    ++events;
    model->count_sent();
    return true;
  };
  completion.stream(send, [] { return false; });
  EXPECT_EQ(events, 2 * kTokens + 2 + 1);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(2900))
      << "20 ms for each token of the first would be three seconds";
}

TEST_F(CompletionTest, AStopTypeIsAWordWhereTheTextHasOne) {
  Engine engine(model_, {});
  const ServedModel served = this->served();
  const auto type_with = [&](const std::vector<std::string>& stops) {
    CompletionRequest wanted{.api = CompletionApi::kLlamaCpp, .request = request(20), .stops = stops};
    wanted.request.format = formats_.of({{"type", "boolean"}});
    return Completion(engine, served, wanted).whole([] { return false; })["stop_type"].get<std::string>();
  };
  EXPECT_EQ(type_with({}), "eos");
  EXPECT_EQ(type_with({"never"}), "eos") << "JSON that is whole";
  EXPECT_EQ(type_with({"e"}), "word") << "of true and false";
}

}  // namespace
}  // namespace plimsoll::serve
