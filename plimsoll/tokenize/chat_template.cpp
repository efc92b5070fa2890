#include "plimsoll/tokenize/chat_template.h"

#include "plimsoll/io/error.h"
#include "plimsoll/io/filesystem_errors.h"
#include "plimsoll/io/json.h"
#include "plimsoll/io/regular_file.h"
#include "plimsoll/tokenize/chat_styles.h"
#include "plimsoll/tokenize/fields.h"

namespace plimsoll::tokenize {
namespace {

constexpr const char* kTemplateFile = "chat_template.jinja";
constexpr uint64_t kMaxTemplateBytes = uint64_t{1} << 20;

// A template, or the one called default of a list of templates.
std::string template_in(const Fields& config) {
  if (!config.at("chat_template").is_array()) return config.text("chat_template");
  std::string found;
  config.for_each("chat_template", [&](const nlohmann::json& element, const std::string& name) {
    const Fields fields(element, name);
    if (fields.text("name") == "default") found = fields.text("template");
  });
  if (found.empty()) config.refuse("chat_template", "a template, or a list with one that is called default");
  return found;
}

// A token's text, which may stand in an object.
std::string token_in(const Fields& config, const char* key) {
  if (config.at(key).is_object()) return config.object(key).text("content");
  return config.text_or_none(key).value_or("");
}

}  // namespace

bool has_chat_template(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / "tokenizer_config.json";
  if (io::with_our_errors([&] { return std::filesystem::exists(directory / kTemplateFile); })) return true;
  if (!io::with_our_errors([&] { return std::filesystem::exists(path); })) return false;
  const nlohmann::json config = io::read_json(path);
  const auto found = config.find("chat_template");
  return found != config.end() && !found->is_null();
}

ChatTemplate::ChatTemplate(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / "tokenizer_config.json", jinja = directory / kTemplateFile;
  const nlohmann::json json = io::read_json(path);
  const Fields config(json, path.native());
  bos_ = token_in(config, "bos_token");
  eos_ = token_in(config, "eos_token");
  const bool has_file = io::with_our_errors([&] { return std::filesystem::exists(jinja); });
  render_ = find_chat_style(strip_spaces(has_file ? io::read_file(jinja, kMaxTemplateBytes) : template_in(config)));
  if (render_ == nullptr) {
    io::fail(
        "{}: expected the chat template of ChatML, SmolLM2, Qwen 3, Llama 3, Gemma 3 or Mistral, got another one; "
        "plimsoll.tokenize.render_chat renders any in Python",
        has_file ? jinja.native() : config.name_of("chat_template"));
  }
}

RenderedChat ChatTemplate::render(const std::vector<ChatMessage>& messages, ReplyPrompt prompt) const {
  if (messages.empty()) io::fail("chat: expected at least one message, got none");
  for (const ChatMessage& message : messages) {
    if (message.role != "system" && message.role != "user" && message.role != "assistant") {
      io::fail("chat: expected the roles system, user and assistant, got '{}'", message.role);
    }
  }
  Writer writer{{}, bos_, eos_, prompt == ReplyPrompt::kAdd};
  render_(messages, writer);
  return std::move(writer.chat);
}

}  // namespace plimsoll::tokenize
