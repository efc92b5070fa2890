// Conversations as the text that a model was trained on. Templates are programs in Jinja; those of ChatML, SmolLM2, Qwen 3,
// Llama 3, Gemma 3 and Mistral are known by their text, and rendered here as Jinja renders them.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "plimsoll/tokenize/json/pattern.h"

namespace plimsoll::tokenize {

struct ChatMessage {
  std::string role;  // system, user or assistant
  std::string content;
};

enum class ReplyPrompt { kAdd, kOmit };  // what begins the assistant's next message

struct RenderedChat {
  std::string text;
  std::vector<Range> replies;  // what the model writes: the assistant's messages, each with the token that ends it
};

// Whether the directory has a template, which may be none of the known ones. Throws io::Error where its files cannot be
// read.
bool has_chat_template(const std::filesystem::path& directory);

class ChatTemplate {
 public:
  // Reads chat_template.jinja or else the chat_template of tokenizer_config.json, and the names of its first and last
  // token. Throws io::Error for a template that is none of the known ones.
  explicit ChatTemplate(const std::filesystem::path& directory);

  // Throws io::Error for a conversation that the template refuses.
  RenderedChat render(const std::vector<ChatMessage>& messages, ReplyPrompt prompt) const;

  struct Writer;  // of one conversation
  using Render = void (*)(const std::vector<ChatMessage>& messages, Writer& writer);

 private:
  Render render_ = nullptr;
  std::string bos_, eos_;
};

}  // namespace plimsoll::tokenize
