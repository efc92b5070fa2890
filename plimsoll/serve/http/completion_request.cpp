#include "plimsoll/serve/http/completion_request.h"

#include <algorithm>
#include <limits>
#include <mutex>
#include <random>
#include <utility>

#include "plimsoll/app/error.h"
#include "plimsoll/app/text/sampling.h"
#include "plimsoll/serve/http/api_error.h"
#include "plimsoll/serve/http/body.h"
#include "plimsoll/serve/json/integer.h"

namespace plimsoll::serve {
namespace {

constexpr int64_t kMostChoices = 16, kMostTop = 20;
constexpr size_t kMostStops = 16;
constexpr size_t kLargeText = size_t{1} << 18;  // bytes
constexpr int64_t kLeast = std::numeric_limits<int64_t>::min(), kMost = std::numeric_limits<int64_t>::max();

std::vector<std::string> read_stops(nlohmann::json stop) {
  if (stop.is_null()) return {};
  if (stop.is_string()) stop = nlohmann::json::array({stop});
  if (!stop.is_array() || stop.size() > kMostStops) {
    refuse_field("stop", "expected a string, or at most {} of them, got {}", kMostStops, stop.type_name());
  }
  std::vector<std::string> stops;
  for (const nlohmann::json& each : stop) {
    if (!each.is_string() || each.get_ref<const std::string&>().empty()) {
      refuse_field("stop", "expected texts that are not empty, got {}",
                   each.is_string() ? "an empty one" : each.type_name());
    }
    stops.push_back(each.get<std::string>());
  }
  return stops;
}

// A string, or parts {"type": "text", "text": ...}.
std::string read_content(const nlohmann::json& content, const std::string& name) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) refuse_field(name, "expected a string or parts of text, got {}", type_of(content));
  std::string text;
  for (const nlohmann::json& each : content) {
    Body part(each, name + ".");
    const std::optional<std::string> type = part.text("type"), piece = part.text("text");
    if (type != "text") refuse_field(name, "expected parts of the type text, got {}", type.value_or("none"));
    if (!piece) refuse_field(part.name_of("text"), "expected a string, got none");
    part.expect_no_more();
    text += *piece;
  }
  return text;
}

std::vector<tokenize::ChatMessage> read_messages(const nlohmann::json& messages) {
  if (!messages.is_array() || messages.empty()) {
    refuse_field("messages", "expected one message or more, got {}", type_of(messages));
  }
  std::vector<tokenize::ChatMessage> result;
  for (const nlohmann::json& each : messages) {
    const std::string name = "messages[" + std::to_string(result.size()) + "]";
    Body message(each, name + ".");
    const std::optional<std::string> role = message.text("role");
    if (!role) refuse_field(name + ".role", "expected system, developer, user or assistant, got none");
    result.push_back({role == "developer" ? "system" : *role,  // OpenAI's newer word, which templates do not know
                      read_content(message.take("content"), name + ".content")});
    message.text("name");    // templates know no names
    message.take("parsed");  // what OpenAI's client has made of the content
    message.take_empty({"annotations", "tool_calls"});
    message.expect_no_more();
  }
  return result;
}

std::vector<int64_t> encode(const ServedModel& served, const std::string& text, tokenize::Specials specials,
                            const std::string& field) {
  // Cutting a text into tokens takes some 50 times its bytes.
  static std::mutex one_large_text;
  std::unique_lock<std::mutex> lock(one_large_text, std::defer_lock);
  if (text.size() > kLargeText) lock.lock();
  try {
    return app::encode(*served.model.tokenizer, served.model.vocabulary, text, specials, field);
  } catch (const app::UsageError& error) {
    throw ApiError(400, error.what(), field);
  }
}

std::vector<int64_t> chat_prompt(Body& body, const ServedModel& served) {
  const std::vector<tokenize::ChatMessage> messages = read_messages(body.take("messages"));
  if (served.chat_template == nullptr) {
    throw ApiError(400, "messages: expected a model with a chat template, got " + served.name, "messages");
  }
  std::string prompt;
  try {
    prompt = served.chat_template->render(messages, tokenize::ReplyPrompt::kAdd).text;
  } catch (const io::Error& error) {
    throw ApiError(400, error.what(), "messages");
  }
  return encode(served, prompt, tokenize::Specials::kWithout, "messages");
}

// A string, or ids.
std::vector<int64_t> plain_prompt(Body& body, const ServedModel& served) {
  nlohmann::json prompt = body.take("prompt");
  const auto is_prompt = [](const nlohmann::json& value) { return value.is_string() || value.is_array(); };
  if (prompt.is_array() && !prompt.empty() && std::ranges::all_of(prompt, is_prompt)) {
    if (prompt.size() > 1) {
      refuse_field("prompt", "expected one, a string or ids, got {}: each needs a request of its own", prompt.size());
    }
    nlohmann::json only = std::move(prompt.front());
    prompt = std::move(only);
  }
  if (prompt.is_string()) {
    const auto& text = prompt.get_ref<const std::string&>();
    const bool lacks_text = text.empty() && served.model.decoder != nullptr;  // a T5's encoder reads </s>
    return encode(served, lacks_text ? "\n" : text, tokenize::Specials::kWith, "prompt");
  }
  if (!prompt.is_array() || prompt.empty()) {
    refuse_field("prompt", "expected a string or ids, got {}", type_of(prompt));
  }
  std::vector<int64_t> ids;
  for (const nlohmann::json& id : prompt) {
    const std::optional<int64_t> number = is_integer(id) ? integer_of(id) : std::nullopt;
    if (!number || *number < 0 || *number > INT32_MAX) {
      refuse_field("prompt", "expected ids of tokens, 0 or more, got {}", id.is_number() ? id.dump() : id.type_name());
    }
    ids.push_back(*number);
  }
  return ids;
}

// The adapter that the field "model" asks for. Where there is but one model, it may say anything.
std::string read_adapter(Body& body, const ServedModel& served) {
  const std::optional<std::string> name = body.text("model");
  if (!name || served.adapters.empty() || name == served.name) return {};
  for (const std::string& adapter : served.adapters) {
    if (name == served.name_of(adapter)) return adapter;
  }
  std::string known;
  for (const std::string& each : served.names()) known += (known.empty() ? "" : ", ") + each;
  throw ApiError(404, io::compose("model: expected one of {}, got {}", known, *name), "model", "model_not_found");
}

// The fields that both kinds have, of the body's text. Throws for those that are left.
void read_common(Body& body, std::string_view text, const ServedModel& served, std::optional<int64_t> max_tokens,
                 CompletionRequest& result) {
  const bool is_llama_cpp = result.api == CompletionApi::kLlamaCpp;
  Request& request = result.request;
  request.adapter = read_adapter(body, served);
  body.text("user");
  body.take_empty({"functions", "logit_bias", "metadata", "tools"});
  app::SamplingChoice sampling{.temperature = body.number("temperature", 0, 100),
                               .top_k = body.integer("top_k", 0, kMost),
                               .top_p = body.number("top_p", 0, 1),
                               .min_p = body.number("min_p", 0, 1)};
  request.sampling = app::chosen_sampling(served.model.generation, sampling);
  request.rules = served.model.generation.rules;
  request.rules.repetition_penalty = body.number(is_llama_cpp ? "repeat_penalty" : "repetition_penalty", 1e-3, 1000)
                                         .value_or(request.rules.repetition_penalty);
  request.rules.frequency_penalty = body.number("frequency_penalty", -2, 2).value_or(0);
  request.rules.presence_penalty = body.number("presence_penalty", -2, 2).value_or(0);
  request.ends = served.model.ends;
  request.format = served.formats.read(body.take("response_format"), text);
  const std::optional<int64_t> seed = body.integer("seed", is_llama_cpp ? -1 : kLeast, kMost);
  const bool has_seed = seed && !(is_llama_cpp && *seed < 0);
  request.seed = has_seed ? *seed : static_cast<int64_t>(std::random_device()());
  if (!is_llama_cpp) result.choices = body.integer("n", 1, kMostChoices).value_or(1);
  if (result.choices > served.places) {
    refuse_field("n", "expected at most {}, the requests that are served and wait at once, got {}", served.places,
                 result.choices);
  }
  result.stops = read_stops(body.take("stop"));
  result.stream = body.flag("stream").value_or(false);
  if (nlohmann::json options = body.take("stream_options"); !options.is_null()) {
    Body stream_options(std::move(options), "stream_options.");
    result.stream_usage = stream_options.flag("include_usage").value_or(false);
    stream_options.expect_no_more();
  }
  body.expect_no_more();
  const int64_t room = served.context - static_cast<int64_t>(request.prompt.size());
  if (room < 1) {
    throw ApiError(400,
                   io::compose("{}: expected less than the {} tokens that a prompt and its reply may have, got {}",
                               result.is_chat() ? "messages" : "prompt", served.context, request.prompt.size()),
                   result.is_chat() ? "messages" : "prompt", "context_length_exceeded");
  }
  request.max_new_tokens = std::min(max_tokens.value_or(room), room);
}

}  // namespace

std::vector<std::string> ServedModel::names() const {
  std::vector<std::string> names = {name};
  for (const std::string& adapter : adapters) names.push_back(name_of(adapter));
  return names;
}

Request CompletionRequest::request_of(int64_t choice) const {
  Request result = request;
  result.choice = choice;
  return result;
}

CompletionRequest read_chat_request(std::string_view text, const ServedModel& served) {
  Body body(text);
  CompletionRequest result{.api = CompletionApi::kChat};
  result.request.prompt = chat_prompt(body, served);
  const std::optional<int64_t> newer = body.integer("max_completion_tokens", 1, kMost);
  const std::optional<int64_t> older = body.integer("max_tokens", 1, kMost);
  const bool wants = body.flag("logprobs").value_or(false);
  const std::optional<int64_t> top = body.integer("top_logprobs", 0, kMostTop);
  if (top && !wants) refuse_field("top_logprobs", "expected logprobs, too, got none");
  if (wants) result.request.top_log_probabilities = top.value_or(0);
  read_common(body, text, served, newer ? newer : older, result);
  return result;
}

CompletionRequest read_completion_request(std::string_view text, const ServedModel& served) {
  constexpr int64_t kUsualTokens = 16;  // as OpenAI's API has it
  Body body(text);
  CompletionRequest result;
  result.request.prompt = plain_prompt(body, served);
  const int64_t max_tokens = body.integer("max_tokens", 1, kMost).value_or(kUsualTokens);
  result.request.top_log_probabilities = body.integer("logprobs", 0, kMostTop);
  if (body.flag("echo").value_or(false)) {
    if (result.request.top_log_probabilities) refuse_field("echo", "expected no logprobs beside it, got both");
    result.echo = served.model.tokenizer->decode_part(result.request.prompt, tokenize::Specials::kWithout).text;
  }
  read_common(body, text, served, max_tokens, result);
  return result;
}

CompletionRequest read_llama_cpp_request(std::string_view text, const ServedModel& served) {
  Body body(text);
  CompletionRequest result{.api = CompletionApi::kLlamaCpp};
  result.request.prompt = plain_prompt(body, served);
  const int64_t tokens = body.integer("n_predict", -1, kMost).value_or(-1);
  if (tokens == 0) refuse_field("n_predict", "expected 1 or more, or -1 for as many as there is room for, got 0");
  // Choices of how its server keeps earlier prompts. Here pages are shared, and no text is cut.
  body.flag("cache_prompt");
  for (const char* name : {"n_keep", "id_slot", "slot_id"}) body.integer(name, -1, kMost);
  if (body.text("grammar").value_or("") != "") refuse_field("grammar", "expected none, or response_format, got one");
  read_common(body, text, served, tokens < 0 ? std::nullopt : std::optional(tokens), result);
  return result;
}

}  // namespace plimsoll::serve
