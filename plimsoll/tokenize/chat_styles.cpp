#include "plimsoll/tokenize/chat_styles.h"

#include <algorithm>
#include <iterator>
#include <span>

#include "plimsoll/io/error.h"
#include "plimsoll/io/sha256.h"
#include "plimsoll/tokenize/utf8.h"

namespace plimsoll::tokenize {
namespace {

using Messages = std::vector<ChatMessage>;
using Writer = ChatTemplate::Writer;

bool is_python_space(char32_t value) { return is_space(value) || (value >= 0x1C && value <= 0x1F); }

std::string_view strip_lines(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of('\n'), text.size()));
  return text.substr(0, text.find_last_not_of('\n') + 1);
}

std::string_view skip_lines(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of('\n'), text.size()));
}

void expect_turns(const Messages& messages, size_t first) {
  for (size_t i = first; i < messages.size(); ++i) {
    if ((messages[i].role == "user") != ((i - first) % 2 == 0)) {
      io::fail("chat: expected user and assistant in turn, got '{}' as message {}", messages[i].role, i);
    }
  }
}

void add_chatml(const ChatMessage& message, std::string_view content, Writer& writer) {
  writer.add("<|im_start|>" + message.role + "\n");
  if (message.role == "assistant") {
    writer.add_reply(content, "<|im_end|>");
  } else {
    writer.add(content);
    writer.add("<|im_end|>");
  }
  writer.add("\n");
}

void render_chatml(const Messages& messages, Writer& writer) {
  for (const ChatMessage& message : messages) add_chatml(message, message.content, writer);
  if (writer.adds_prompt) writer.add("<|im_start|>assistant\n");
}

void render_smollm2(const Messages& messages, Writer& writer) {
  if (messages[0].role != "system") {
    writer.add("<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n");
  }
  render_chatml(messages, writer);
}

// A reply and, before it, what the model thought.
struct Thought {
  std::string_view thought, reply;
};

Thought split_thought(std::string_view content) {
  constexpr std::string_view kBegin = "<think>", kEnd = "</think>";
  const size_t first_end = content.find(kEnd);
  if (first_end == content.npos) return {"", content};
  std::string_view thought = content.substr(0, first_end);
  thought = thought.substr(0, thought.find_last_not_of('\n') + 1);
  if (const size_t begin = thought.rfind(kBegin); begin != thought.npos) thought.remove_prefix(begin + kBegin.size());
  return {skip_lines(thought), skip_lines(content.substr(content.rfind(kEnd) + kEnd.size()))};
}

// Thoughts are shown after the user's last question alone.
void render_qwen3(const Messages& messages, Writer& writer) {
  const auto asks = [](const ChatMessage& message) {
    return message.role == "user" &&
           !(message.content.starts_with("<tool_response>") && message.content.ends_with("</tool_response>"));
  };
  const auto last_question = std::find_if(messages.rbegin(), messages.rend(), asks);
  const size_t question =
      last_question == messages.rend() ? messages.size() - 1 : static_cast<size_t>(messages.rend() - last_question) - 1;
  for (size_t i = 0; i < messages.size(); ++i) {
    std::string content = messages[i].content;
    if (messages[i].role == "assistant") {
      const auto [thought, reply] = split_thought(messages[i].content);
      content = reply;
      if (i > question && (i + 1 == messages.size() || !thought.empty())) {
        content = io::compose("<think>\n{}\n</think>\n\n{}", strip_lines(thought), skip_lines(reply));
      }
    }
    add_chatml(messages[i], content, writer);
  }
  if (writer.adds_prompt) writer.add("<|im_start|>assistant\n");
}

void render_llama3_messages(const Messages& messages, Writer& writer) {
  writer.add(writer.bos);
  for (const ChatMessage& message : messages) {
    writer.add("<|start_header_id|>" + message.role + "<|end_header_id|>\n\n");
    const std::string_view content = strip_spaces(message.content);
    if (message.role == "assistant") {
      writer.add_reply(content, "<|eot_id|>");
    } else {
      writer.add(content);
      writer.add("<|eot_id|>");
    }
  }
}

constexpr std::string_view kLlama3Prompt = "<|start_header_id|>assistant<|end_header_id|>\n\n";

void render_llama3(const Messages& messages, Writer& writer) {
  render_llama3_messages(messages, writer);
  if (writer.adds_prompt) writer.add(kLlama3Prompt);
}

// The first edition adds the prompt always.
void render_first_llama3(const Messages& messages, Writer& writer) {
  render_llama3_messages(messages, writer);
  writer.add(kLlama3Prompt);
}

void render_gemma3(const Messages& messages, Writer& writer) {
  const size_t first = messages[0].role == "system" ? 1 : 0;
  expect_turns(messages, first);
  writer.add(writer.bos);
  for (size_t i = first; i < messages.size(); ++i) {
    const bool is_reply = messages[i].role == "assistant";
    writer.add("<start_of_turn>" + (is_reply ? "model" : messages[i].role) + "\n");
    if (i == first && first == 1) writer.add(messages[0].content + "\n\n");
    const std::string_view content = strip_spaces(messages[i].content);
    if (is_reply) {
      writer.add_reply(content, "<end_of_turn>");
    } else {
      writer.add(content);
      writer.add("<end_of_turn>");
    }
    writer.add("\n");
  }
  if (writer.adds_prompt) writer.add("<start_of_turn>model\n");
}

void render_mistral_messages(const Messages& messages, std::string_view behind, Writer& writer) {
  expect_turns(messages, 0);
  writer.add(writer.bos);
  for (const ChatMessage& message : messages) {
    if (message.role == "system") io::fail("chat: expected the roles user and assistant, got 'system'");
    if (message.role == "user") {
      writer.add("[INST] " + message.content + " [/INST]");
    } else {
      writer.add_reply(message.content, writer.eos);
      writer.add(behind);
    }
  }
}

void render_mistral(const Messages& messages, Writer& writer) { render_mistral_messages(messages, "", writer); }
void render_first_mistral(const Messages& messages, Writer& writer) { render_mistral_messages(messages, " ", writer); }

// python/tests/chat_template_test.py renders each with jinja2 and compares.
constexpr ChatStyle kChatStyles[] = {
    {"fcf7a096fe99a48fd9ad2b250bf9237e96e8f48bffec1c7ea4d3f225176cd40e", render_chatml},
    {"26a59556925c987317ce5291811ba3b7f32ec4c647c400c6cc7e3a9993007ba7", render_mistral},
    {"7e995b379ec01747807246483647cd99030abf331653f1119e16d7ac041a3495", render_first_mistral},
    {"4f46ecd43418f216df8c26936c60e5d04bcc81db47db5d86fbe889f64212dd4c", render_llama3},
    {"872be49dbb638044ad01b60388f48d469ff2980e5f0dccdc22ec907db54d0788", render_smollm2},
    {"87a2728cb8dc9fe424d624542f6060ec05a1d285ebbec578bb078900e33396b5", render_qwen3},
    {"b48c47f6443892716176eb200bf4ef108f64e06ca26ed0fa8ebc0a4b3992fcb2", render_first_llama3},
    {"8d9e3a3c114fb2053ec500184677af4f7e5f8ec2582443cd535834e68b3ade29", render_gemma3},
};

}  // namespace

std::string_view strip_spaces(std::string_view text) {
  while (!text.empty()) {
    const Character first = character_at(text, 0);
    if (!is_python_space(first.value)) break;
    text.remove_prefix(first.bytes);
  }
  while (!text.empty()) {
    size_t last = text.size() - 1;
    while (last > 0 && (static_cast<uint8_t>(text[last]) & 0xC0) == 0x80) --last;
    if (!is_python_space(character_at(text, last).value)) break;
    text = text.substr(0, last);
  }
  return text;
}

std::span<const ChatStyle> chat_styles() { return kChatStyles; }

ChatTemplate::Render find_chat_style(std::string_view text) {
  const std::string digest = io::sha256(std::as_bytes(std::span(text)));
  const auto known = std::find_if(std::begin(kChatStyles), std::end(kChatStyles),
                                  [&](const ChatStyle& row) { return row.digest == digest; });
  return known == std::end(kChatStyles) ? nullptr : known->render;
}

}  // namespace plimsoll::tokenize
