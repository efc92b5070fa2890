// Watch over the ranks that are alive. Each process counts up in the store, from a thread of its own, until it ends or
// is stopped.
// The first that finds another one missing leaves word in the store for all.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace plimsoll::shard {

class Peers {
 public:
  // store: a connection that nothing else uses. serves: it is in this process, and ends with it.
  Peers(c10::intrusive_ptr<c10d::Store> store, int64_t rank, int64_t size, bool serves);
  ~Peers();
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  // Failure that a rank has left word of; empty as long as nothing is known to be wrong. At once.
  std::string failure() const;

  // Looks who is missing: "rank 2 has ended or stands still", for an error; empty if all are alive. Takes up to 3.5
  // seconds, no time where the store has not answered for two, and where the store is one second more, in which the
  // others read it.
  std::string find_missing() const;

 private:
  struct State;
  std::shared_ptr<State> state_;  // with the thread, which may outlive this where the store does not answer
};

}  // namespace plimsoll::shard
