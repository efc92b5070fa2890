// A reply as text: whole characters, up to the first of the texts that end it.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "plimsoll/app/text/stop_texts.h"
#include "plimsoll/serve/reply.h"
#include "plimsoll/tokenize/decode_stream.h"

namespace plimsoll::serve {

struct ReplyPiece {
  std::string text = {};
  std::optional<ReplyToken> token = {};  // none: text that was held until the end
};

// Cancels the reply when it goes.
class ReplyText {
 public:
  ReplyText(const tokenize::Tokenizer& tokenizer, std::vector<std::string> stops, std::shared_ptr<Reply> reply)
      : reply_(std::move(reply)), stream_(tokenizer), stops_(std::move(stops)) {}
  ~ReplyText() {
    if (reply_ != nullptr) reply_->cancel();
  }
  ReplyText(ReplyText&&) = default;
  ReplyText& operator=(ReplyText&&) = delete;

  bool is_ready() { return ended_ || reply_->wait_for(std::chrono::milliseconds(0)); }  // next() returns at once
  void when_ready(std::function<void()> call) { reply_->when_ready(std::move(call)); }  // as Reply's
  // None when the reply has ended.
  std::optional<ReplyPiece> next();

  bool ended() const { return ended_; }
  bool stopped() const { return stops_.reached(); }  // by one of the texts
  models::TextEnd end() const { return end_; }
  std::string error() const { return reply_->error(); }
  int64_t tokens() const { return tokens_; }

 private:
  std::shared_ptr<Reply> reply_;
  tokenize::DecodeStream stream_;
  app::StopTexts stops_;
  bool ended_ = false;
  models::TextEnd end_ = models::TextEnd::kLength;
  int64_t tokens_ = 0;
};

}  // namespace plimsoll::serve
