// A body of POST /v1/chat/completions, /v1/completions or /completion, as requests to the engine.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "plimsoll/app/text/served_texts.h"
#include "plimsoll/serve/http/json_formats.h"
#include "plimsoll/serve/request.h"
#include "plimsoll/tokenize/chat_template.h"

namespace plimsoll::serve {

struct ServedModel {
  std::string name;
  const app::ServedTexts& model;
  const tokenize::ChatTemplate* chat_template = nullptr;  // of a model that talks
  JsonFormats& formats;
  int64_t context = 0;  // tokens of a prompt and its reply
  int64_t places = 0;   // requests that are served or wait, each choice one
  std::vector<std::string> adapters = {};

  // Name that requests give the model with an adapter; empty: without.
  std::string name_of(const std::string& adapter) const { return adapter.empty() ? name : name + ":" + adapter; }
  std::vector<std::string> names() const;  // the model's, then those of its adapters
};

enum class CompletionApi : uint8_t {
  kCompletions,  // OpenAI's
  kChat,         // OpenAI's
  kLlamaCpp      // that of llama.cpp's server by itself
};

struct CompletionRequest {
  CompletionApi api = CompletionApi::kCompletions;
  Request request = {};  // of the first choice
  int64_t choices = 1;
  std::vector<std::string> stops = {};  // texts that end a reply, and are not shown
  std::string echo = {};                // what the text begins with
  bool stream = false, stream_usage = false;

  bool is_chat() const { return api == CompletionApi::kChat; }
  Request request_of(int64_t choice) const;
};

// Throw ApiError, which names the field at fault.
CompletionRequest read_chat_request(std::string_view body, const ServedModel& served);
CompletionRequest read_completion_request(std::string_view body, const ServedModel& served);
CompletionRequest read_llama_cpp_request(std::string_view body, const ServedModel& served);

}  // namespace plimsoll::serve
