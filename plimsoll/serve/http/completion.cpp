#include "plimsoll/serve/http/completion.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <new>
#include <random>
#include <utility>

#include "plimsoll/serve/http/api_error.h"
#include "plimsoll/tokenize/utf8.h"

namespace plimsoll::serve {
namespace {

using models::TextEnd;
using nlohmann::json;
using tokenize::Specials;

constexpr std::chrono::milliseconds kPatience(20);  // between two looks whether the client is still there
constexpr const char* kNobody = "the client has gone";

std::string new_id(bool is_chat) {
  static const uint64_t start = (uint64_t{std::random_device()()} << 32) | std::random_device()();
  static std::atomic<uint64_t> count = 0;
  return io::compose("{}-{:016x}{:08x}", is_chat ? "chatcmpl" : "cmpl", start, count++);
}

int64_t seconds_now() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::seconds>(now).count();
}

std::shared_ptr<Reply> submit(Engine& engine, Request request) {
  try {
    return engine.submit(std::move(request));
  } catch (const QueueFull& error) {
    throw ApiError(429, error.what(), "", "queue_full");
  } catch (const c10::Error& error) {
    throw ApiError(400, error.what_without_backtrace(), "prompt");
  }
}

// A token's bytes as JSON can have them: as text, or if they are no whole characters, behind the prefix with \xF0 for a byte that is
// no printable ASCII.
std::string spelled(const std::string& bytes, const char* prefix) {
  if (tokenize::valid_bytes(bytes) == bytes.size()) return bytes;
  std::string text = prefix;
  for (const char byte : bytes) {
    text +=
        byte >= ' ' && byte <= '~' ? std::string(1, byte) : io::compose("\\x{:02x}", static_cast<unsigned char>(byte));
  }
  return text;
}

const char* finish_reason(TextEnd end) {
  switch (end) {
    case TextEnd::kToken:
    case TextEnd::kStop:
      return "stop";
    case TextEnd::kLength:
    case TextEnd::kInterrupted:
    case TextEnd::kNotFinite:
      break;
  }
  return "length";
}

// A text that ended without a token for it, and without a stop string, is one whose format was complete.
const char* stop_type(const ReplyText& reply) {
  if (reply.stopped()) return "word";
  return reply.end() == TextEnd::kToken || reply.end() == TextEnd::kStop ? "eos" : "limit";
}

std::string event(const json& value) { return "data: " + dump(value) + "\n\n"; }

}  // namespace

std::string dump(const json& value) { return value.dump(-1, ' ', false, json::error_handler_t::replace); }

Completion::Completion(Engine& engine, const ServedModel& served, CompletionRequest request)
    : served_(served),
      request_(std::move(request)),
      id_(new_id(request_.is_chat())),
      created_(seconds_now()),
      record_(std::make_shared<CompletionRecord>()) {
  record_->model = served_.name_of(request_.request.adapter);
  record_->prompt_tokens = static_cast<int64_t>(request_.request.prompt.size());
  for (int64_t i = 0; i < request_.choices; ++i) {
    const tokenize::Tokenizer& tokenizer = *served.model.tokenizer;
    choices_.push_back({i, ReplyText(tokenizer, request_.stops, submit(engine, request_.request_of(i))),
                        tokenize::TokenTexts(tokenizer), request_.echo});
    choices_.back().reply.when_ready([bell = bell_] { bell->ring(); });
  }
}

void Completion::Bell::ring() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    rung_ = true;
  }
  changed_.notify_all();
}

void Completion::Bell::wait_for(std::chrono::milliseconds time) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait_for(lock, time, [&] { return rung_; });
  rung_ = false;
}

bool Completion::follow(const std::function<bool(Choice&, const ReplyPiece&)>& hear, const Gone& gone) {
  for (;;) {
    bool is_open = false;
    for (Choice& choice : choices_) {
      while (!choice.reply.ended() && choice.reply.is_ready()) {
        if (gone()) return false;
        const std::optional<ReplyPiece> piece = choice.reply.next();
        if (piece && piece->token) ++record_->completion_tokens;
        if (piece && !hear(choice, *piece)) return false;
      }
      is_open = is_open || !choice.reply.ended();
    }
    if (!is_open) return true;
    if (gone()) return false;
    bell_->wait_for(kPatience);
  }
}

const char* Completion::record_finish(const Choice& choice) const {
  if (choice.reply.end() == TextEnd::kNotFinite) {
    throw ApiError(500, io::compose("expected finite logits, got Inf or NaN after {} tokens", choice.reply.tokens()));
  }
  if (choice.reply.end() == TextEnd::kInterrupted) {
    const std::string error = choice.reply.error();
    throw ApiError(503, error.empty() ? "the server stops" : error);
  }
  const char* const reason = finish_reason(choice.reply.end());
  record_->finish_reasons.emplace_back(reason);
  return reason;
}

json Completion::head(const char* object) const {
  return {{"id", id_}, {"object", object}, {"created", created_}, {"model", record_->model}};
}

json Completion::usage() const {
  const int64_t prompt = record_->prompt_tokens, written = record_->completion_tokens;
  return {{"prompt_tokens", prompt}, {"completion_tokens", written}, {"total_tokens", prompt + written}};
}

json Completion::llama_cpp(const std::string& text, const Choice* ended) const {
  json result = {{"content", text}, {"stop", ended != nullptr}};
  if (ended == nullptr) return result;
  record_finish(*ended);
  result["stop_type"] = stop_type(ended->reply);
  result["model"] = record_->model;
  result["tokens_evaluated"] = record_->prompt_tokens;
  result["tokens_predicted"] = record_->completion_tokens;
  result["truncated"] = false;  // a prompt that is too long is refused
  return result;
}

json Completion::chat_token(const LikelyToken& token, const tokenize::TokenTexts& texts) {
  const std::string own = texts.bytes_of(token.id, Specials::kWith);
  json bytes = json::array();
  for (const char byte : own) bytes.push_back(static_cast<unsigned char>(byte));
  return {{"token", spelled(own, "")}, {"logprob", token.log_probability}, {"bytes", std::move(bytes)}};
}

json Completion::log_probabilities(Choice& choice, const std::vector<ReplyToken>& tokens) const {
  if (!request_.request.top_log_probabilities) return {};
  if (request_.is_chat()) {
    json content = json::array();
    for (const ReplyToken& token : tokens) {
      json entry = chat_token(token.token, choice.token_texts);
      entry["top_logprobs"] = json::array();
      for (const LikelyToken& other : token.top) entry["top_logprobs"].push_back(chat_token(other, choice.token_texts));
      content.push_back(std::move(entry));
      choice.token_texts.follow(token.token.id);
    }
    return {{"content", std::move(content)}};
  }
  json result = {{"tokens", json::array()},
                 {"token_logprobs", json::array()},
                 {"top_logprobs", json::array()},
                 {"text_offset", json::array()}};
  const auto text_of = [&](int64_t id) { return spelled(choice.token_texts.bytes_of(id, Specials::kWith), "bytes:"); };
  for (const ReplyToken& token : tokens) {
    json top = json::object();
    for (const LikelyToken& other : token.top) {  // the likeliest of those with one text
      top.emplace(text_of(other.id), other.log_probability);
    }
    result["tokens"].push_back(text_of(token.token.id));
    result["token_logprobs"].push_back(token.token.log_probability);
    result["top_logprobs"].push_back(std::move(top));
    result["text_offset"].push_back(
        choice.offsets.add(choice.token_texts.bytes_of(token.token.id, Specials::kWithout)));
    choice.token_texts.follow(token.token.id);
  }
  return result;
}

json Completion::whole(const Gone& gone) {
  const bool all = follow(
      [](Choice& choice, const ReplyPiece& piece) {
        choice.text += piece.text;
        if (piece.token) choice.tokens.push_back(*piece.token);
        return true;
      },
      gone);
  if (!all) throw ApiError(503, kNobody);
  if (request_.api == CompletionApi::kLlamaCpp) return llama_cpp(choices_.front().text, &choices_.front());
  json choices = json::array();
  for (Choice& choice : choices_) {
    json entry = {{"index", choice.index},
                  {"finish_reason", record_finish(choice)},
                  {"logprobs", log_probabilities(choice, choice.tokens)}};
    if (request_.is_chat()) {
      entry["message"] = {{"role", "assistant"}, {"content", choice.text}};
    } else {
      entry["text"] = choice.text;
    }
    choices.push_back(std::move(entry));
  }
  json result = head(request_.is_chat() ? "chat.completion" : "text_completion");
  result["choices"] = std::move(choices);
  result["usage"] = usage();
  return result;
}

json Completion::chunk(const Choice& choice, json delta, json log_probabilities, json finish) const {
  json result = head(request_.is_chat() ? "chat.completion.chunk" : "text_completion");
  json entry = {
      {"index", choice.index}, {"finish_reason", std::move(finish)}, {"logprobs", std::move(log_probabilities)}};
  if (request_.is_chat()) {
    entry["delta"] = std::move(delta);
  } else {
    entry["text"] = delta.value("content", "");
  }
  result["choices"] = json::array({std::move(entry)});
  if (request_.stream_usage) result["usage"] = nullptr;
  return result;
}

void Completion::stream(const std::function<bool(const std::string&)>& send, const Gone& gone) {
  const auto send_or_fail = [&](const json& value) {
    if (!send(event(value))) throw ApiError(503, kNobody);
  };
  const auto send_piece = [&](Choice& choice, const ReplyPiece& piece) {
    const bool has_log_probability = piece.token && request_.request.top_log_probabilities;
    if (piece.text.empty() && !has_log_probability) return true;
    if (request_.api == CompletionApi::kLlamaCpp) return send(event(llama_cpp(piece.text, nullptr)));
    std::vector<ReplyToken> tokens;
    if (piece.token) tokens.push_back(*piece.token);
    return send(event(chunk(choice, {{"content", piece.text}}, log_probabilities(choice, tokens), {})));
  };
  try {
    for (const Choice& choice : choices_) {
      json delta = {{"content", choice.text}};
      if (request_.is_chat()) delta["role"] = "assistant";
      if (request_.is_chat() || !choice.text.empty()) send_or_fail(chunk(choice, delta, {}, {}));
    }
    if (!follow(send_piece, gone)) throw ApiError(503, kNobody);
    if (request_.api == CompletionApi::kLlamaCpp) {
      send_or_fail(llama_cpp("", &choices_.front()));
      return;
    }
    for (const Choice& choice : choices_) send_or_fail(chunk(choice, json::object(), {}, record_finish(choice)));
    if (request_.stream_usage) {
      json last = head(request_.is_chat() ? "chat.completion.chunk" : "text_completion");
      last["choices"] = json::array();
      last["usage"] = usage();
      send_or_fail(last);
    }
    send("data: [DONE]\n\n");
  } catch (const ApiError& error) {
    record_->error = error.what();
    send(event(to_json(error)));
  } catch (const std::bad_alloc&) {
    record_->error = kNoMemory;
    send(event(to_json(ApiError(503, kNoMemory))));
  }
}

}  // namespace plimsoll::serve
