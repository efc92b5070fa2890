// The known chat templates.
#pragma once

#include <span>
#include <string_view>

#include "plimsoll/tokenize/chat_template.h"

namespace plimsoll::tokenize {

struct ChatTemplate::Writer {
  RenderedChat chat;
  std::string_view bos, eos;
  bool adds_prompt;

  void add(std::string_view text) { chat.text += text; }
  void add_reply(std::string_view text, std::string_view end) {
    const size_t begin = chat.text.size();
    chat.text.append(text).append(end);
    chat.replies.push_back({begin, chat.text.size()});
  }
};

struct ChatStyle {
  std::string_view digest;  // SHA-256 of the template's text without the spaces around it
  ChatTemplate::Render render;
};

std::span<const ChatStyle> chat_styles();

// Null for a template that is not known. `text`: the template without spaces around it.
ChatTemplate::Render find_chat_style(std::string_view text);

// The text without the spaces around it that Python's strip() takes.
std::string_view strip_spaces(std::string_view text);

}  // namespace plimsoll::tokenize
