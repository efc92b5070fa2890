// A conversation with a model, in the words of its chat template.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "plimsoll/app/text/text_writer.h"
#include "plimsoll/tokenize/chat_template.h"

namespace plimsoll::app {

class Chat {
 public:
  // The model has to outlive the chat. system: what the conversation begins with. Throws io::Error for a model without a
  // chat template that tokenize::ChatTemplate knows.
  Chat(const TextModel& model, WritingOptions options, std::optional<std::string> system);

  // The model's reply, which joins the conversation together with the message. Throws UsageError, and leaves the
  // conversation as it was, if the model cannot see that much text, or the chat template refuses the message.
  WrittenText reply(const std::string& message, const TextObserver& observer);
  // Forgets all messages.
  void reset();

 private:
  std::string prompt_of(const std::vector<tokenize::ChatMessage>& messages) const;

  const TextModel& model_;
  tokenize::ChatTemplate template_;
  TextWriter writer_;
  std::optional<std::string> system_;
  std::vector<tokenize::ChatMessage> messages_;
};

}  // namespace plimsoll::app
