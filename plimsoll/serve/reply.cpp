#include "plimsoll/serve/reply.h"

#include <utility>

namespace plimsoll::serve {

std::optional<ReplyToken> Reply::next() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [&] { return ready(); });
  if (tokens_.empty()) return std::nullopt;
  ReplyToken token = std::move(tokens_.front());
  tokens_.pop_front();
  return token;
}

bool Reply::wait_for(std::chrono::milliseconds time) {
  std::unique_lock<std::mutex> lock(mutex_);
  return changed_.wait_for(lock, time, [&] { return ready(); });
}

models::TextEnd Reply::end() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return end_.value_or(models::TextEnd::kInterrupted);
}

std::string Reply::error() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return error_;
}

void Reply::when_ready(std::function<void()> call) {
  const std::lock_guard<std::mutex> lock(mutex_);
  when_ready_ = std::move(call);
  if (ready() && when_ready_) when_ready_();
}

void Reply::push(ReplyToken token) {
  const std::lock_guard<std::mutex> lock(mutex_);
  tokens_.push_back(std::move(token));
  tell_ready();
}

void Reply::finish(models::TextEnd end, std::string error) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!end_) {
    end_ = end;
    error_ = std::move(error);
  }
  tell_ready();
}

void Reply::tell_ready() {
  changed_.notify_all();
  if (when_ready_) when_ready_();
}

}  // namespace plimsoll::serve
