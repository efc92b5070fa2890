#include "plimsoll/tokenize/chat_template.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "plimsoll/io/error_testing.h"
#include "plimsoll/io/testing.h"

namespace plimsoll::tokenize {
namespace {

using testing::HasSubstr;

constexpr const char* kChatMl =
    R"({% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}})"
    R"({% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %})";

ChatTemplate load_template(const nlohmann::json& config, const std::string& file = "") {
  const io::TemporaryDirectory directory;
  io::write_plainly(directory / "tokenizer_config.json", config.dump());
  if (!file.empty()) io::write_plainly(directory / "chat_template.jinja", file);
  return ChatTemplate(directory.path());
}

TEST(AChatTemplate, RendersMessagesAndSaysWhichTheModelWrites) {
  const ChatTemplate chat_template = load_template({{"chat_template", kChatMl}});
  const RenderedChat chat =
      chat_template.render({{"user", "Hi"}, {"assistant", "Ho"}, {"user", ""}}, ReplyPrompt::kAdd);
  EXPECT_EQ(chat.text,
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHo<|im_end|>\n<|im_start|>user\n<|im_end|>\n"
            "<|im_start|>assistant\n");
  ASSERT_EQ(chat.replies.size(), 1U);
  EXPECT_EQ(chat.text.substr(chat.replies[0].begin, chat.replies[0].end - chat.replies[0].begin), "Ho<|im_end|>");
}

TEST(AChatTemplate, IsReadFromItsFileOrFromAList) {
  const std::vector<ChatMessage> messages = {{"user", "a"}};
  const std::string expected = "<|im_start|>user\na<|im_end|>\n";
  const nlohmann::json list = {{{"name", "tools"}, {"template", "x"}}, {{"name", "default"}, {"template", kChatMl}}};
  EXPECT_EQ(
      load_template({{"chat_template", "x"}}, std::string(kChatMl) + "\n").render(messages, ReplyPrompt::kOmit).text,
      expected);
  EXPECT_EQ(load_template({{"chat_template", list}}).render(messages, ReplyPrompt::kOmit).text, expected);
}

TEST(AChatTemplate, ThatIsNotKnownIsRefused) {
  EXPECT_THAT(io::error_of([] { load_template({{"chat_template", "{{ messages }}"}}); }), HasSubstr("got another one"));
  EXPECT_THAT(io::error_of([] { load_template(nlohmann::json::object()); }),
              HasSubstr("chat_template: expected a string, got none"));
}

TEST(AChatTemplate, IsThereIfAFileOrTheConfigHasOne) {
  const io::TemporaryDirectory directory;
  EXPECT_FALSE(has_chat_template(directory.path()));
  for (const char* config : {"{}", "[]", R"({"chat_template": null})"}) {
    io::write_plainly(directory / "tokenizer_config.json", config);
    EXPECT_FALSE(has_chat_template(directory.path())) << config;
  }
  io::write_plainly(directory / "tokenizer_config.json", R"({"chat_template": "{{ messages }}"})");
  EXPECT_TRUE(has_chat_template(directory.path()));
  io::write_plainly(directory / "tokenizer_config.json", "{");
  EXPECT_THAT(io::error_of([&] { has_chat_template(directory.path()); }), HasSubstr("tokenizer_config.json"));
  io::write_plainly(directory / "chat_template.jinja", "");
  EXPECT_TRUE(has_chat_template(directory.path()));
}

TEST(AChatTemplate, RefusesConversationsThatItCannotRender) {
  const ChatTemplate chat_template = load_template({{"chat_template", kChatMl}});
  EXPECT_EQ(io::error_of([&] { chat_template.render({}, ReplyPrompt::kAdd); }),
            "chat: expected at least one message, got none");
  EXPECT_EQ(io::error_of([&] {
              chat_template.render({{"tool", "x"}}, ReplyPrompt::kAdd);
            }),
            "chat: expected the roles system, user and assistant, got 'tool'");
}

}  // namespace
}  // namespace plimsoll::tokenize
