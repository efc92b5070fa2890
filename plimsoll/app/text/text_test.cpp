// Texts that a small model of bytes writes, and chats with it.
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <set>

#include "plimsoll/amp/fp8_autocast.h"
#include "plimsoll/app/error.h"
#include "plimsoll/app/text/chat.h"
#include "plimsoll/app/text/stop_texts.h"
#include "plimsoll/app/text/text_writer.h"
#include "plimsoll/io/testing.h"
#include "plimsoll/models/gpt/model.h"
#include "plimsoll/recipe/recipe.h"
#include "plimsoll/tokenize/byte_tokenizer.h"

namespace plimsoll::app {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr const char* kChatml =
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

TextModel small_model(int64_t context, const std::filesystem::path& directory = {}) {
  at::manual_seed(3);
  models::Gpt gpt(models::GptConfig{.layers = 2, .dim = 32, .heads = 2, .context = context});
  gpt->eval();
  return {.directory = directory,
          .model = gpt.ptr(),
          .recipe = recipe::by_name("fp32"),
          .tokenizer = std::make_unique<tokenize::ByteTokenizer>(),
          .ends = {}};
}

std::vector<int64_t> ids_of(std::string_view text) { return tokenize::ByteTokenizer().encode(text); }

WritingOptions greedy(int64_t tokens) { return {.sampling = {.temperature = 0}, .max_new_tokens = tokens}; }

// Log probabilities of what follows tokens that join a cache.
at::Tensor next_of(const TextModel& model, const std::vector<int64_t>& tokens, models::TokenCache& cache) {
  const amp::Fp8Autocast scope({.recipe = *model.recipe});
  return at::log_softmax(model.model->extend(at::tensor(tokens).unsqueeze(0), cache)[0][-1], -1, at::kDouble);
}

// Tokens that a writer has drawn.
struct Drawn {
  std::vector<int64_t> ids;
  std::vector<double> log_probabilities;

  TextObserver observer() {
    return {.on_token = [this](const WrittenToken& token) {
      ids.push_back(token.id);
      log_probabilities.push_back(token.log_probability);
    }};
  }
};

TEST(TextWriter, WritesTheLikeliestTokensWithTheirLogProbabilities) {
  const TextModel model = small_model(64);
  TextWriter writer(model, greedy(10));
  Drawn drawn;
  const WrittenText written = writer.write(ids_of("prompt"), drawn.observer());
  EXPECT_EQ(written.end, TextEnd::kLength);
  EXPECT_EQ(written.read_tokens, 6);
  ASSERT_EQ(drawn.ids.size(), 10u);
  models::TokenCache cache = model.model->make_cache();
  for (size_t i = 0; i < drawn.ids.size(); ++i) {
    const at::Tensor next = next_of(model, i == 0 ? ids_of("prompt") : std::vector{drawn.ids[i - 1]}, cache);
    EXPECT_EQ(drawn.ids[i], next.argmax().item<int64_t>());
    // Both take the sum of the exponentials of 256 FP32 logits in double: 256 roundings of 2^-53, the errors of exp and
    // log below 2^-52, and the difference of numbers below 16.
    EXPECT_NEAR(drawn.log_probabilities[i], next[drawn.ids[i]].item<double>(), (256 + 2 + 16) * 0x1p-52);
  }
  EXPECT_EQ(written.text, model.tokenizer->decode(drawn.ids));
}

TEST(TextWriter, ReadsOfALongerPromptWhatIsNew) {
  const TextModel model = small_model(64);
  TextWriter writer(model, greedy(5)), fresh(model, greedy(5));
  Drawn first;
  writer.write(ids_of("prompt"), first.observer());
  std::vector<int64_t> longer = ids_of("prompt");
  longer.insert(longer.end(), first.ids.begin(), first.ids.end());
  longer.push_back('x');
  Drawn again, whole;
  EXPECT_EQ(writer.write(longer, again.observer()).read_tokens, 2);  // the last that was drawn, and x
  EXPECT_EQ(fresh.write(longer, whole.observer()).read_tokens, 12);
  EXPECT_EQ(again.ids, whole.ids);
  Drawn other, alone;
  EXPECT_EQ(writer.write(ids_of("other"), other.observer()).read_tokens, 5);
  TextWriter(model, greedy(5)).write(ids_of("other"), alone.observer());
  EXPECT_EQ(other.ids, alone.ids);
}

TEST(TextWriter, EndsAtATokenAStopAnInterruptOrALimit) {
  TextModel model = small_model(64);
  Drawn drawn;
  WritingOptions options{.sampling = {.temperature = 1}, .max_new_tokens = 8};
  const WrittenText whole = TextWriter(model, options).write(ids_of("a"), drawn.observer());
  ASSERT_EQ(whole.tokens, 8);

  int asked = 0;
  const WrittenText interrupted =
      TextWriter(model, options).write(ids_of("a"), {.interrupted = [&] { return ++asked > 3; }});
  EXPECT_EQ(interrupted.end, TextEnd::kInterrupted);
  EXPECT_EQ(interrupted.tokens, 3);
  EXPECT_EQ(TextWriter(model, options).write(ids_of("a"), {}, 2).tokens, 2);

  model.ends = {drawn.ids[4]};
  const WrittenText ended = TextWriter(model, options).write(ids_of("a"), {});
  const auto first = std::find(drawn.ids.begin(), drawn.ids.end(), drawn.ids[4]) - drawn.ids.begin();
  EXPECT_EQ(ended.end, TextEnd::kToken);
  EXPECT_EQ(ended.tokens, first + 1);
  EXPECT_EQ(ended.text, model.tokenizer->decode({drawn.ids.data(), static_cast<size_t>(first)}));
}

TEST(TextWriter, ShowsNoStopAndNothingBehindIt) {
  const TextModel model = small_model(64);
  WritingOptions options = greedy(20);
  const std::string whole = TextWriter(model, options).write(ids_of("a"), {}).text;
  options.stops = {whole.substr(6, 6)};
  std::string shown;
  const WrittenText written =
      TextWriter(model, options).write(ids_of("a"), {.on_text = [&](std::string_view text) { shown += text; }});
  EXPECT_EQ(written.end, TextEnd::kStop);
  EXPECT_EQ(shown, whole.substr(0, whole.find(options.stops[0])));
  EXPECT_EQ(written.text, shown);
}

TEST(TextWriter, APenaltyKeepsTokensFromComingAgain) {
  const TextModel model = small_model(64);
  WritingOptions options = greedy(20);
  options.rules.repetition_penalty = 1000;
  Drawn drawn;
  TextWriter(model, options).write(ids_of("a"), drawn.observer());
  EXPECT_EQ(std::set<int64_t>(drawn.ids.begin(), drawn.ids.end()).size(), 20u);
}

TEST(StopTexts, HoldsBackWhatMayBeginAStop) {
  StopTexts stops({"<end>", "ing"});
  std::vector<std::string> shown;
  for (const char* piece : {"a <e", "n", "x<", "<en", "d> more", "never"}) shown.push_back(stops.add(piece));
  EXPECT_THAT(shown, ElementsAre("a ", "", "<enx", "<", "", ""));
  EXPECT_TRUE(stops.reached());
  EXPECT_EQ(stops.finish(), "");
  StopTexts none({"<end>"});
  EXPECT_EQ(none.add("a<en"), "a");
  EXPECT_EQ(none.finish(), "<en");
  EXPECT_FALSE(none.reached());
}

class ChatTest : public testing::Test {
 protected:
  void SetUp() override {
    io::write_plainly(directory_ / "tokenizer_config.json", nlohmann::json{{"chat_template", kChatml}}.dump());
  }
  // A reply as the writer gives it to this text.
  std::string expected(const std::string& text) { return TextWriter(model_, options_).write(ids_of(text), {}).text; }

  const io::TemporaryDirectory directory_;
  const TextModel model_ = small_model(256, directory_.path());
  const WritingOptions options_ = greedy(4);
};

TEST_F(ChatTest, RemembersUntilItIsReset) {
  Chat chat(model_, options_, "S");
  const std::string start = "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\n";
  const std::string begin = start + "hi<|im_end|>\n<|im_start|>assistant\n";
  const WrittenText first = chat.reply("hi", {});
  EXPECT_EQ(first.text, expected(begin));
  EXPECT_EQ(first.read_tokens, static_cast<int64_t>(begin.size()));
  const std::string more = "<|im_end|>\n<|im_start|>user\nho<|im_end|>\n<|im_start|>assistant\n";
  const WrittenText second = chat.reply("ho", {});
  EXPECT_EQ(second.text, expected(begin + first.text + more));
  chat.reset();
  EXPECT_EQ(chat.reply("ho", {}).text, expected(start + "ho<|im_end|>\n<|im_start|>assistant\n"));
}

TEST_F(ChatTest, RefusesWhatTheModelCannotSee) {
  Chat chat(model_, options_, std::nullopt), undisturbed(model_, options_, std::nullopt);
  const std::string first = chat.reply("hi", {}).text;
  EXPECT_EQ(undisturbed.reply("hi", {}).text, first);
  EXPECT_THAT([&] { chat.reply(std::string(300, 'a'), {}); },
              ThrowsMessage<UsageError>(HasSubstr("expected a conversation of less than the 256 tokens")));
  EXPECT_EQ(chat.reply("ho", {}).text, undisturbed.reply("ho", {}).text);
}

}  // namespace
}  // namespace plimsoll::app
