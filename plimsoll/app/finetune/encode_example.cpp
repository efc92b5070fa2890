#include "plimsoll/app/finetune/encode_example.h"

#include <algorithm>
#include <utility>

namespace plimsoll::app {

using tokenize::Specials;

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

}  // namespace plimsoll::app
