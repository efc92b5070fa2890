// tokenizer_program DIRECTORY: encodes and decodes the texts on standard input, for tokenizer_test.py and bench/tokenizer.py.
// A text is its size (uint32, little endian) and its bytes. For each, standard output gets, with their counts before them: its
// ids (uint32) with special tokens, what these decode to without and with special tokens, and what a stream of them gives.
// With --chat, conversations come, for chat_template_test.py.
// With --ids, lists of ids (uint32) come instead of texts. With --time, all texts are encoded once and again, and standard output gets the seconds of the second time.
#include <chrono>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "plimsoll/io/error.h"
#include "plimsoll/tokenize/chat_template.h"
#include "plimsoll/tokenize/decode_stream.h"
#include "plimsoll/tokenize/json/tokenizer_json.h"

namespace {

using plimsoll::tokenize::Specials;

bool read_text(std::string& text) {
  uint32_t size = 0;
  if (std::fread(&size, sizeof(size), 1, stdin) != 1) return false;
  text.resize(size);
  return std::fread(text.data(), 1, size, stdin) == size;
}

void write(const void* data, size_t count, size_t size) {
  const auto number = static_cast<uint32_t>(count);
  std::fwrite(&number, sizeof(number), 1, stdout);
  std::fwrite(data, size, count, stdout);
}

std::vector<int64_t> ids_in(const std::string& bytes) {
  std::vector<uint32_t> ids(bytes.size() / sizeof(uint32_t));
  std::memcpy(ids.data(), bytes.data(), ids.size() * sizeof(uint32_t));
  return {ids.begin(), ids.end()};
}

void answer(const plimsoll::tokenize::Tokenizer& tokenizer, const std::vector<int64_t>& ids) {
  const std::vector<uint32_t> narrow(ids.begin(), ids.end());
  write(narrow.data(), narrow.size(), sizeof(uint32_t));
  plimsoll::tokenize::DecodeStream stream(tokenizer, Specials::kWith);
  std::string streamed;
  for (const int64_t id : ids) streamed += stream.next(id);
  streamed += stream.finish();
  for (const std::string& decoded : {tokenizer.decode(ids), tokenizer.decode(ids, Specials::kWith), streamed}) {
    write(decoded.data(), decoded.size(), 1);
  }
}

// {"text", "replies"} or {"error"} for {"messages", "add_generation_prompt"}, a line each.
void answer_chats(const char* directory) {
  const plimsoll::tokenize::ChatTemplate chat_template(directory);
  for (std::string text; read_text(text);) {
    const nlohmann::json request = nlohmann::json::parse(text);
    std::vector<plimsoll::tokenize::ChatMessage> messages;
    for (const auto& message : request["messages"]) messages.push_back({message["role"], message["content"]});
    const bool prompt = request["add_generation_prompt"];
    nlohmann::json answer;
    try {
      using plimsoll::tokenize::ReplyPrompt;
      const auto chat = chat_template.render(messages, prompt ? ReplyPrompt::kAdd : ReplyPrompt::kOmit);
      answer["text"] = chat.text;
      answer["replies"] = nlohmann::json::array();
      for (const auto& reply : chat.replies) answer["replies"].push_back({reply.begin, reply.end});
    } catch (const plimsoll::io::Error& error) {
      answer["error"] = error.what();
    }
    std::puts(answer.dump().c_str());
  }
}

double seconds_of(const plimsoll::tokenize::Tokenizer& tokenizer, const std::vector<std::string>& texts) {
  const auto begin = std::chrono::steady_clock::now();
  size_t count = 0;
  for (const std::string& text : texts) count += tokenizer.encode(text).size();
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
  return count > 0 ? passed.count() : 0;
}

}  // namespace

int main(int count, char** arguments) {
  try {
    const std::string_view mode = count > 2 ? arguments[2] : "";
    if (mode == "--chat") {
      answer_chats(arguments[1]);
      return 0;
    }
    const plimsoll::tokenize::TokenizerJson tokenizer(arguments[1]);
    std::string text;
    if (mode != "--time") {
      while (read_text(text)) answer(tokenizer, mode == "--ids" ? ids_in(text) : tokenizer.encode(text));
      return 0;
    }
    std::vector<std::string> texts;
    while (read_text(text)) texts.push_back(text);
    seconds_of(tokenizer, texts);
    std::printf("%.6f\n", seconds_of(tokenizer, texts));
  } catch (const plimsoll::io::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
