#include "plimsoll/app/text/chat.h"

#include <utility>

#include "plimsoll/app/error.h"
#include "plimsoll/io/error.h"

namespace plimsoll::app {

Chat::Chat(const TextModel& model, WritingOptions options, std::optional<std::string> system)
    : model_(model), template_(model.directory), writer_(model, std::move(options)), system_(std::move(system)) {
  reset();
}

void Chat::reset() {
  messages_.clear();
  if (system_) messages_.push_back({"system", *system_});
}

std::string Chat::prompt_of(const std::vector<tokenize::ChatMessage>& messages) const {
  try {
    return template_.render(messages, tokenize::ReplyPrompt::kAdd).text;
  } catch (const io::Error& error) {
    refuse("chat: {}", std::string(error.what()));
  }
}

WrittenText Chat::reply(const std::string& message, const TextObserver& observer) {
  std::vector<tokenize::ChatMessage> messages = messages_;
  messages.push_back({"user", message});
  const std::string prompt = prompt_of(messages);
  const std::vector<int64_t> ids = encode(model_, prompt, tokenize::Specials::kWithout, "chat");
  const int64_t room = model_.model->context() - static_cast<int64_t>(ids.size());
  if (room < 1) {
    refuse("chat: expected a conversation of less than the {} tokens that the model sees, got {}",
           model_.model->context(), ids.size());
  }
  WrittenText reply = writer_.write(ids, observer, room);
  messages.push_back({"assistant", reply.text});
  messages_ = std::move(messages);
  return reply;
}

}  // namespace plimsoll::app
