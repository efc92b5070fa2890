#include "plimsoll/app/text/encode_example.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "plimsoll/io/error.h"

namespace plimsoll::app {

using tokenize::Fields;
using tokenize::Specials;

namespace {

std::string some_text(const Fields& fields, const char* key) {
  std::string text = fields.text(key);
  if (text.empty()) io::fail("{}: expected a text, got an empty one", fields.name_of(key));
  return text;
}

// Chats may repeat their first message as a prompt, which data sets do.
void expect_one_kind(const Fields& fields) {
  const auto has = [&](const char* key) { return !fields.at(key).is_null(); };
  std::vector<std::string> kinds;
  if (has("messages")) kinds.emplace_back("messages");
  if (has("completion")) {
    kinds.emplace_back("completion");
  } else if (has("prompt") && !has("messages")) {
    kinds.emplace_back("prompt");
  }
  if (has("text")) kinds.emplace_back("text");
  if (kinds.size() < 2) return;
  io::fail("{}: expected one of messages, prompt and completion, and text, got {} and {}", fields.name(), kinds[0],
           kinds[1]);
}

std::vector<tokenize::ChatMessage> messages_in(const Fields& fields) {
  std::vector<tokenize::ChatMessage> messages;
  fields.for_each("messages", [&](const nlohmann::json& message, const std::string& name) {
    const Fields turn(message, name);
    messages.push_back({turn.text("role"), some_text(turn, "content")});
  });
  return messages;
}

}  // namespace

ExampleEncoder::ExampleEncoder(const tokenize::Tokenizer& tokenizer, std::filesystem::path directory, TrainOn train_on)
    : tokenizer_(tokenizer), directory_(std::move(directory)), train_on_(train_on) {}

std::vector<int64_t> ExampleEncoder::ended(const std::string& text) const {
  std::vector<int64_t> ids = tokenizer_.encode(text, Specials::kWith);
  if (const auto end = tokenizer_.eos(); end && (ids.empty() || ids.back() != *end)) ids.push_back(*end);
  return ids;
}

ExampleEncoder::Encoded ExampleEncoder::encoded(const std::vector<int64_t>& ids) const {
  Encoded result;
  for (const int64_t id : ids) result.example.tokens.push_back(static_cast<int32_t>(id));
  result.example.counts.assign(ids.size(), train_on_ == TrainOn::kAll ? 1 : 0);
  if (!ids.empty()) result.example.counts[0] = 0;
  return result;
}

void ExampleEncoder::count(Encoded& encoded, std::string_view text, tokenize::Range reply, Specials specials) const {
  if (train_on_ == TrainOn::kAll) return;
  Example& example = encoded.example;
  // Tokens that the text before `end` has in common with the whole.
  const auto common = [&](const std::vector<int64_t>& ids) {
    return static_cast<size_t>(
        std::mismatch(ids.begin(), ids.end(), example.tokens.begin(), example.tokens.end()).first - ids.begin());
  };
  const std::vector<int64_t> before = tokenizer_.encode(text.substr(0, reply.begin), specials);
  const size_t begin = common(before);
  const size_t end =
      reply.end == text.size() ? example.tokens.size() : common(tokenizer_.encode(text.substr(0, reply.end), specials));
  if (begin < before.size()) ++encoded.joined;
  for (size_t i = std::max<size_t>(begin, 1); i < end; ++i) example.counts[i] = 1;
}

ExampleEncoder::Encoded ExampleEncoder::chat(const std::vector<tokenize::ChatMessage>& messages) {
  if (!template_) template_.emplace(directory_);
  const tokenize::RenderedChat chat = template_->render(messages, tokenize::ReplyPrompt::kOmit);
  Encoded result = encoded(tokenizer_.encode(chat.text, Specials::kWithout));
  for (const tokenize::Range& reply : chat.replies) count(result, chat.text, reply, Specials::kWithout);
  return result;
}

ExampleEncoder::Encoded ExampleEncoder::pair(const std::string& prompt, const std::string& completion) const {
  const std::string whole = prompt + completion;
  Encoded result = encoded(ended(whole));
  count(result, whole, {prompt.size(), whole.size()}, Specials::kWith);
  return result;
}

ExampleEncoder::Encoded ExampleEncoder::text(const std::string& text) const {
  Encoded result = encoded(ended(text));
  std::fill(result.example.counts.begin() + (result.example.counts.empty() ? 0 : 1), result.example.counts.end(),
            uint8_t{1});
  return result;
}

std::optional<ExampleEncoder::Encoded> ExampleEncoder::object(const Fields& fields) {
  expect_one_kind(fields);
  if (!fields.at("messages").is_null()) return chat(messages_in(fields));
  if (!fields.at("completion").is_null()) return pair(fields.text("prompt"), some_text(fields, "completion"));
  if (!fields.at("text").is_null()) return text(some_text(fields, "text"));
  return std::nullopt;
}

}  // namespace plimsoll::app
