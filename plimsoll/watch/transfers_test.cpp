#include "plimsoll/watch/transfers.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace plimsoll::watch {
namespace {

void sleep_milliseconds(int count) { std::this_thread::sleep_for(std::chrono::milliseconds(count)); }

TEST(Transfer, IsNothingWithoutARecording) { EXPECT_EQ(Transfer::start("all_reduce", 1), nullptr); }

TEST(Transfer, GoesOnBesideTheThreadThatWaitsForTheRestOfIt) {
  Transfers transfers;
  const TransferRecording recording(transfers);
  const auto transfer = Transfer::start("all_reduce", 5);
  sleep_milliseconds(10);
  const auto before = std::chrono::steady_clock::now();
  transfer->wait_with([&] {
    std::thread([&] {
      sleep_milliseconds(30);
      transfer->arrive();
    }).join();
  });
  const std::chrono::nanoseconds waited = std::chrono::steady_clock::now() - before;
  ASSERT_EQ(transfers.size(), 1u);
  const TransferEvent& event = transfers.front();
  EXPECT_EQ(event.name, "all_reduce");
  EXPECT_EQ(event.bytes, 5);
  EXPECT_GE(event.end_ns - event.begin_ns, 40'000'000);
  EXPECT_GE(event.waited_ns, 30'000'000);
  EXPECT_LE(event.waited_ns, waited.count()) << "not since the transfer began";
}

TEST(Transfer, ThatIsWaitedForAfterItsRecordingIsNoEvent) {
  Transfers transfers;
  std::shared_ptr<Transfer> transfer;
  {
    const TransferRecording recording(transfers);
    transfer = Transfer::start("all_reduce", 1);
  }
  transfer->wait_with([] {});
  EXPECT_TRUE(transfers.empty());
}

}  // namespace
}  // namespace plimsoll::watch
