// The replies to a CompletionRequest as OpenAI's JSON or llama.cpp's, whole or as events.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "plimsoll/serve/engine.h"
#include "plimsoll/serve/http/completion_request.h"
#include "plimsoll/serve/http/reply_text.h"
#include "plimsoll/serve/http/text_offsets.h"
#include "plimsoll/tokenize/token_texts.h"

namespace plimsoll::serve {

// Whether nobody waits for the reply any more. An ApiError that it throws is what the client gets instead.
using Gone = std::function<bool()>;

// JSON as it is sent: what is no UTF-8 in it is replaced.
std::string dump(const nlohmann::json& value);

// The outcome of a completion, for the log of the server.
struct CompletionRecord {
  std::string model;
  int64_t prompt_tokens = 0, completion_tokens = 0;  // of all choices
  std::vector<std::string> finish_reasons = {};      // of choices that have ended
  std::string error = {};                            // why a stream broke off
};

class Completion {
 public:
  // Gives the requests to the engine, which has to outlive the completion. Throws ApiError: 429 for a full queue, 400 for
  // what the engine refuses.
  Completion(Engine& engine, const ServedModel& served, CompletionRequest request);

  // Throws ApiError if a reply fails, or if it is gone. Then, too, the engine forgets what is left of the replies when the
  // completion goes.
  nlohmann::json whole(const Gone& gone);
  // send(event) gets each event and says whether it could be sent. OpenAI's last is [DONE].
  void stream(const std::function<bool(const std::string&)>& send, const Gone& gone);
  // Goes on changing until the completion goes.
  std::shared_ptr<const CompletionRecord> record() const { return record_; }

 private:
  struct Choice {
    int64_t index;
    ReplyText reply;
    tokenize::TokenTexts token_texts;
    std::string text = {};
    std::vector<ReplyToken> tokens = {};  // with log probabilities
    TextOffsets offsets = {};
  };

  // A bell that any of the replies rings when it has something to read.
  class Bell {
   public:
    void ring();
    void wait_for(std::chrono::milliseconds time);  // until it rings, or has rung since the last call

   private:
    std::mutex mutex_;
    std::condition_variable changed_;
    bool rung_ = false;
  };

  // Calls hear(choice, piece) as the pieces come; false from it, or gone, ends that. Returns whether all have ended.
  bool follow(const std::function<bool(Choice&, const ReplyPiece&)>& hear, const Gone& gone);
  // The finish reason of a choice that has ended, which goes into the record. Throws ApiError if it failed.
  const char* record_finish(const Choice& choice) const;
  nlohmann::json head(const char* object) const;
  // Reply of llama.cpp's server: a piece of the text, and if the choice has ended why.
  nlohmann::json llama_cpp(const std::string& text, const Choice* ended) const;
  nlohmann::json usage() const;
  nlohmann::json log_probabilities(Choice& choice, const std::vector<ReplyToken>& tokens) const;
  static nlohmann::json chat_token(const LikelyToken& token, const tokenize::TokenTexts& texts);
  nlohmann::json chunk(const Choice& choice, nlohmann::json delta, nlohmann::json log_probabilities,
                       nlohmann::json finish) const;

  const ServedModel& served_;
  const CompletionRequest request_;
  const std::string id_;
  const int64_t created_;
  const std::shared_ptr<Bell> bell_ = std::make_shared<Bell>();  // the replies may outlive the completion
  std::vector<Choice> choices_;
  const std::shared_ptr<CompletionRecord> record_;
};

}  // namespace plimsoll::serve
