// Collectives of a c10d process group, each with a deadline, and with errors that say which collective failed and which
// ranks are gone. C++ makes the group, or Python's torch.distributed has made it.
//
//   const auto ranks = shard::Communicator::connect(shard::launch_from_environment());
//   shard::Pending sum = ranks->all_reduce_(gradients);   // goes on while this thread computes
//   sum.wait();
//
// All ranks call the same collectives in the same order, with tensors of the same sizes and dtypes. Tensors of a device
// need a backend for it; there wait() orders the current stream behind the collective, and the host goes on. What is on
// the CPU takes the way through the device where a group has no backend for the CPU, and the host waits.
#pragma once

#include <ATen/core/TensorBody.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "plimsoll/ops/ranks/byte_rank_group.h"
#include "plimsoll/shard/communicator/launch.h"

namespace plimsoll::shard {

// A collective on its way. Its tensors may be read, written or freed after wait().
class Pending {
 public:
  Pending() = default;  // done
  explicit Pending(std::function<void()> wait) : wait_(std::move(wait)) {}

  // Throws c10::DistBackendError where another rank has failed, or did not come within the deadline. Once.
  void wait();
  bool done() const { return wait_ == nullptr; }

 private:
  std::function<void()> wait_;
};

struct CommunicatorOptions {
  // The limit of each collective, and of finding each other.
  std::chrono::milliseconds deadline = std::chrono::minutes(10);
};

struct Connection;

class Communicator final : public ops::ByteRankGroup {
 public:
  // Over Gloo. Returns when all ranks are there. Throws c10::DistBackendError after the deadline. With more than one rank,
  // SIGPIPE does not end the process any more, unless the program has a handler of its own.
  static std::shared_ptr<Communicator> connect(const Launch& launch, const CommunicatorOptions& options = {});

  // Over a process group of torch.distributed, of any backend, by the name that it is registered under. The name is
  // looked up at each call, and one that is not registered is an error. The group's own limit is the deadline.
  // Peers are watched over where the group's ranks meet in a TCPStore.
  static std::shared_ptr<Communicator> over(const std::string& group);
  // The same without a watch over peers, for groups that are looked up often: errors name no rank.
  static std::shared_ptr<Communicator> over_unwatched(const std::string& group);

  // One rank of `size` that reaches no other: what it alone does works, and its collectives are errors.
  static std::shared_ptr<Communicator> unconnected(int64_t rank, int64_t size);

  // The same ranks with an order of collectives of their own, so that two threads can use one each. A collective. Gloo
  // alone can.
  std::shared_ptr<Communicator> split(const std::string& name) const;

  ~Communicator() override;

  int64_t rank() const;
  int64_t size() const override;
  bool is_connected() const;

  // In place, contiguous.
  Pending all_reduce_(const at::Tensor& x) const;          // the sum, in x's dtype
  Pending reduce_(const at::Tensor& x, int64_t to) const;  // the sum, there; elsewhere x is scratch memory
  Pending broadcast_(const at::Tensor& x, int64_t from = 0) const;
  // mine [n] of each rank -> [size n] in the order of the ranks, at `to`; nothing elsewhere.
  ops::Arriving start_collect(const at::Tensor& mine, int64_t to) const;
  // Returns when all ranks are here.
  void barrier() const;

  void all_reduce_max(std::span<int32_t> values) const override;
  ops::Arriving start_gather(const at::Tensor& mine, const at::Tensor& all) const override;
  ops::Arriving start_exchange(const at::Tensor& parts) const override;

 private:
  explicit Communicator(std::shared_ptr<const Connection> connection);

  std::shared_ptr<const Connection> connection_;
};

}  // namespace plimsoll::shard
