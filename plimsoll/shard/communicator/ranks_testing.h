// Tests in several processes. Each rank is this test program again, with this one test to run, in which on_ranks() is
// called once:
//
//   TEST(Communicator, Sums) {
//     testing::on_ranks(3, [](const Launch& launch) { ... });  // in three processes, and not in this one
//   }
#pragma once

#include <cstdint>
#include <functional>
#include <set>

#include "plimsoll/shard/communicator/communicator.h"

namespace plimsoll::shard::testing {

struct Fates {
  std::set<int64_t> killed = {};   // by a signal, of their own doing
  std::set<int64_t> stopped = {};  // stand still (SIGSTOP); killed once the others have ended
};

// A test failure, with what the rank printed, unless each rank ends well or as `fates` says, within minutes. `body` begins
// when the programs of all ranks have started, however long that took.
void on_ranks(int64_t world_size, const std::function<void(const Launch&)>& body, const Fates& fates = {});

std::shared_ptr<Communicator> connect(const Launch& launch,
                                      std::chrono::milliseconds deadline = std::chrono::minutes(2));

}  // namespace plimsoll::shard::testing
