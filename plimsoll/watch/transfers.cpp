#include "plimsoll/watch/transfers.h"

#include <chrono>
#include <utility>

namespace plimsoll::watch {
namespace {

thread_local Transfers* recorded = nullptr;

}  // namespace

TransferRecording::TransferRecording(Transfers& transfers) : previous_(std::exchange(recorded, &transfers)) {}
TransferRecording::~TransferRecording() { recorded = previous_; }

Transfer::Transfer(Transfers* to, std::string_view name, double bytes)
    : to_(to), name_(name), bytes_(bytes), begin_ns_(now_ns()) {}

std::shared_ptr<Transfer> Transfer::start(std::string_view name, double bytes) {
  if (recorded == nullptr) return nullptr;
  return std::shared_ptr<Transfer>(new Transfer(recorded, name, bytes));
}

int64_t Transfer::now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void Transfer::arrive() { end_ns_ = now_ns(); }

void Transfer::record(int64_t wait_began_ns) const {
  if (recorded != to_) return;
  const int64_t now = now_ns(), arrived = end_ns_;
  to_->push_back({.name = name_,
                  .begin_ns = begin_ns_,
                  .end_ns = arrived == 0 ? now : arrived,
                  .waited_ns = now - wait_began_ns,
                  .bytes = bytes_});
}

}  // namespace plimsoll::watch
