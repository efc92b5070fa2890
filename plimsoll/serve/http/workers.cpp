#include "plimsoll/serve/http/workers.h"

#include <exception>

namespace plimsoll::serve {

Workers::Workers(size_t most) : most_(most) {
  threads_.reserve(most_);
  threads_.emplace_back([this] { work(); });
}

void Workers::run(const std::function<void()>& task) {
  try {
    task();
  } catch (const std::exception&) {  // no memory for a request, whose connection is closed by now
  }
}

void Workers::add(std::function<void()> task) {
  std::unique_lock<std::mutex> lock(mutex_);
  try {
    tasks_.push_back(task);
  } catch (const std::exception&) {  // no memory: done here and now, for whoever adds it does not expect an exception
    lock.unlock();
    return run(task);
  }
  if (tasks_.size() > idle_ && threads_.size() < most_) {
    try {
      threads_.emplace_back([this] { work(); });
    } catch (const std::exception&) {  // no thread, or no memory for one
      has_all_ = true;
    }
  }
  has_all_ = has_all_ || threads_.size() == most_;
  changed_.notify_one();
}

void Workers::work() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    ++idle_;
    changed_.wait(lock, [this] { return ends_ || !tasks_.empty(); });
    --idle_;
    if (tasks_.empty()) return;
    {
      const std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      run(task);
    }
    lock.lock();
  }
}

void Workers::shutdown() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

bool Workers::is_crowded() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return has_all_ && tasks_.size() > idle_;
}

size_t Workers::threads() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return threads_.size();
}

}  // namespace plimsoll::serve
