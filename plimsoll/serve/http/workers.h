// Threads that answer connections: another one starts when all are busy, up to a limit. httplib's own pool starts all at
// once, and where the system has no more threads ends the process.
#pragma once

#include <httplib.h>

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace plimsoll::serve {

class Workers final : public httplib::TaskQueue {
 public:
  // Throws std::system_error if the system does not give even one thread.
  explicit Workers(size_t most);
  ~Workers() override { shutdown(); }
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  // void, or in later versions of httplib bool: whether there was room.
  using Enqueued = decltype(std::declval<httplib::TaskQueue&>().enqueue({}));
  // A task for which no thread can be started waits for another's. One that throws is over.
  Enqueued enqueue(std::function<void()> task) override {
    add(std::move(task));
    return static_cast<Enqueued>(true);
  }
  // Waits for all tasks.
  void shutdown() override;

  size_t threads() const;
  // Whether a task waits for another's thread.
  bool is_crowded() const;

 private:
  void add(std::function<void()> task);
  static void run(const std::function<void()>& task);
  void work();

  const size_t most_;
  mutable std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  std::vector<std::thread> threads_;
  size_t idle_ = 0;       // threads that wait for a task
  bool has_all_ = false;  // the threads that there will be
  bool ends_ = false;
};

}  // namespace plimsoll::serve
