// Work beside a thread, such as collectives: from when to when, and how long the thread waited for it.
//
//   watch::Transfers transfers;
//   const watch::TransferRecording recording(transfers);            // of this thread
//   const auto transfer = watch::Transfer::start("all_reduce", n);  // nullptr if nobody records
//   ...                                                             // transfer->arrive() on whatever thread
//   transfer->wait_with([&] { work.wait(); });
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace plimsoll::watch {

// Times are of the clock of SpanEvent.
struct TransferEvent {
  std::string name;
  int64_t begin_ns, end_ns;
  int64_t waited_ns = 0;  // of them by the thread that started it
  double bytes = 0;
};

// In the order in which they were waited for.
using Transfers = std::vector<TransferEvent>;

// Until destruction on the constructing thread. Nests: the inner one holds.
class TransferRecording {
 public:
  explicit TransferRecording(Transfers& transfers);
  ~TransferRecording();
  TransferRecording(const TransferRecording&) = delete;
  TransferRecording& operator=(const TransferRecording&) = delete;

 private:
  Transfers* previous_;
};

class Transfer {
 public:
  // nullptr if nobody records.
  static std::shared_ptr<Transfer> start(std::string_view name, double bytes);

  void arrive();  // on any thread
  // wait() returns when it is there. On the thread that started it; what is never waited for is no event.
  template <class Wait>
  void wait_with(Wait wait) {
    const int64_t begin_ns = now_ns();
    wait();
    record(begin_ns);
  }

 private:
  Transfer(Transfers* to, std::string_view name, double bytes);
  static int64_t now_ns();
  void record(int64_t wait_began_ns) const;

  Transfers* to_;  // nobody's when its recording has ended
  std::string name_;
  double bytes_;
  int64_t begin_ns_;
  std::atomic<int64_t> end_ns_ = 0;  // 0: on its way
};

}  // namespace plimsoll::watch
