// The tokens of a request, on their way from the engine to whoever asked for them.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>

#include "plimsoll/models/decoding.h"
#include "plimsoll/serve/request.h"

namespace plimsoll::serve {

// Safe to use from several threads.
class Reply {
 public:
  // The next token, waited for; none when the reply has ended.
  std::optional<ReplyToken> next();
  // Whether next() returns at once, waiting for so long.
  bool wait_for(std::chrono::milliseconds time);
  // For an event loop: `call` is called when next() would return at once, for each token and for the end, and now if so. It
  // runs on the engine's thread, which waits for it, and may not call the reply.
  void when_ready(std::function<void()> call);
  // No more tokens are wanted: the engine forgets the request before its next step.
  void cancel() { cancelled_ = true; }
  bool cancelled() const { return cancelled_; }

  // The end of a reply whose next() gave none. kInterrupted: it was cancelled, or the engine stopped; error() may say why.
  models::TextEnd end() const;
  std::string error() const;

  // For the engine.
  void push(ReplyToken token);
  void finish(models::TextEnd end, std::string error = {});

 private:
  void tell_ready();  // under the lock
  bool ready() const { return !tokens_.empty() || end_.has_value(); }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<ReplyToken> tokens_;
  std::optional<models::TextEnd> end_;
  std::string error_;
  std::function<void()> when_ready_;
  std::atomic<bool> cancelled_ = false;
};

}  // namespace plimsoll::serve
