// Bytes up to the first zero as tokenizer_config.json, the rest as a conversation, a message behind each zero, in every known
// style: a text in which replies stand where they are said to, or one line.
#include <cstdlib>
#include <vector>

#include "files.h"
#include "plimsoll/io/error.h"
#include "plimsoll/tokenize/chat_styles.h"

namespace {

using namespace plimsoll;

constexpr const char* kRoles[] = {"user", "assistant", "system"};

// A message's first byte picks its role.
std::vector<tokenize::ChatMessage> messages_of(std::string_view text) {
  std::vector<tokenize::ChatMessage> messages;
  for (size_t zero = 0; zero < text.size();) {
    const size_t end = std::min(text.find('\0', zero + 1), text.size());
    const std::string_view message = text.substr(zero + 1, end - zero - 1);
    if (!message.empty()) {
      messages.push_back({kRoles[static_cast<unsigned char>(message[0]) % 3], std::string(message.substr(1))});
    }
    zero = end;
  }
  return messages;
}

void check_replies(const tokenize::RenderedChat& chat) {
  size_t behind = 0;
  for (const tokenize::Range& reply : chat.replies) {
    if (reply.begin < behind || reply.end < reply.begin || reply.end > chat.text.size()) std::abort();
    behind = reply.end;
  }
}

template <class Read>
void one_line_or(const Read& read) {
  try {
    read();
  } catch (const io::Error& error) {
    fuzz::check_line(error.what());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fuzz::Files files;
  const std::string_view all = fuzz::text_of(data, size);
  const size_t zero = std::min(all.find('\0'), all.size());
  files.write("tokenizer_config.json", all.substr(0, zero));
  const std::vector<tokenize::ChatMessage> messages = messages_of(all.substr(zero));
  one_line_or(
      [&] { check_replies(tokenize::ChatTemplate(files.path()).render(messages, tokenize::ReplyPrompt::kAdd)); });
  if (messages.empty()) return 0;
  for (const tokenize::ChatStyle& style : tokenize::chat_styles()) {
    one_line_or([&] {
      tokenize::ChatTemplate::Writer writer{{}, "<s>", "</s>", true};
      style.render(messages, writer);
      check_replies(writer.chat);
    });
  }
  return 0;
}
