#include "plimsoll/shard/communicator/communicator.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <tuple>
#include <utility>
#include <vector>

#include "plimsoll/shard/communicator/connection.h"
#include "plimsoll/shard/communicator/gloo.h"
#include "plimsoll/shard/communicator/unequal_collectives.h"

namespace plimsoll::shard {
namespace {

using Backend = c10d::Backend;
using Store = c10::intrusive_ptr<c10d::Store>;

Store store_of(const Launch& launch, std::chrono::milliseconds deadline, bool serves) {
  c10d::TCPStoreOptions options;
  options.port = launch.port;
  options.isServer = serves;
  options.numWorkers = static_cast<size_t>(launch.world_size);
  options.waitWorkers = false;
  options.timeout = deadline;
  return c10::make_intrusive<c10d::TCPStore>(launch.address, options);
}

// A rank that has ended makes writes to it errors, not SIGPIPE, whose default ends this process. What the host program has
// chosen stays. The handler is an empty function, not SIG_IGN, which programs that this process starts would inherit.
void outlive_broken_pipes() {
  struct sigaction now = {};
  if (sigaction(SIGPIPE, nullptr, &now) != 0 || (now.sa_flags & SA_SIGINFO) != 0 || now.sa_handler != SIG_DFL) return;
  struct sigaction empty = {};
  empty.sa_handler = [](int) {};
  empty.sa_flags = SA_RESTART;
  sigaction(SIGPIPE, &empty, nullptr);
}

// Beginning of the keys that this meeting of the ranks has in the store. torchrun's agent keeps its store while one process of a rank after
// another meets the others there, as the runs of `plimsoll compare` do: each rank counts its own.
std::string meeting_of(const Launch& launch, c10d::Store& store) {
  if (!launch.store_is_running) return "plimsoll";
  const std::string restart = "plimsoll/restart " + std::to_string(launch.restarts);
  const int64_t meeting = store.add(restart + "/meetings of rank " + std::to_string(launch.rank), 1);
  return restart + "/meeting " + std::to_string(meeting);
}

// Within the deadline, all of it.
void find_each_other(const Launch& launch, Connection& connection) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  const bool serves = launch.rank == 0 && !launch.store_is_running;
  const auto connect = [launch, deadline = connection.deadline, serves] {
    Store shared = store_of(launch, deadline, serves), own = store_of(launch, deadline, false);
    const std::string meeting = meeting_of(launch, *shared);
    return std::pair<Store, Store>(c10::make_intrusive<c10d::PrefixStore>(meeting, shared),
                                   c10::make_intrusive<c10d::PrefixStore>(meeting, own));
  };
  const std::string place = launch.address + ":" + std::to_string(launch.port);
  Store own;
  std::tie(connection.store, own) =
      Connection::in_time(place + ", where the ranks' store should be, does not answer", connection.deadline, connect);
  connection.peers = std::make_shared<Peers>(own, launch.rank, launch.world_size, serves);
  const auto passed = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start);
  connection.connect_beside("world", std::max(connection.deadline - passed, std::chrono::milliseconds(1)));
}

// start(copy of x on the device) -> Pending, in place of x.
template <class Start>
Pending there_and_back(const at::Tensor& x, c10::Device device, Start start) {
  const at::Tensor there = x.to(device);
  const auto pending = std::make_shared<Pending>(start(there));
  return Pending([pending, there, x] {
    pending->wait();
    x.copy_(there);
  });
}

// Bytes that arrive on a device, in `result` on the CPU.
ops::Arriving brought_back(ops::Arriving there, const at::Tensor& result) {
  const auto arriving = std::make_shared<ops::Arriving>(std::move(there));
  return ops::Arriving(result, [arriving, result] { result.copy_(arriving->take()); });
}

}  // namespace

void Pending::wait() {
  if (const auto wait = std::exchange(wait_, nullptr)) wait();
}

Communicator::Communicator(std::shared_ptr<const Connection> connection) : connection_(std::move(connection)) {}
Communicator::~Communicator() = default;

int64_t Communicator::rank() const { return connection_->rank; }
int64_t Communicator::size() const { return connection_->size; }
bool Communicator::is_connected() const { return connection_->is_connected; }

std::shared_ptr<Communicator> Communicator::connect(const Launch& launch, const CommunicatorOptions& options) {
  auto connection = std::make_shared<Connection>();
  connection->rank = launch.rank;
  connection->size = launch.world_size;
  connection->deadline = options.deadline;
  connection->path = "plimsoll";
  connection->failed = " on rank " + std::to_string(launch.rank) + " of " + std::to_string(launch.world_size) +
                       " failed (deadline " + std::to_string(options.deadline.count()) + " ms): ";
  connection->not_known = "it has met no other rank";
  connection->make_backend = [launch, deadline = options.deadline](const Store& store) {
    return gloo(store, launch.rank, launch.world_size, launch.address, deadline);
  };
  if (launch.world_size > 1) {
    outlive_broken_pipes();
    explain_unequal_collectives();
    connection->guarded("connecting", [&] { find_each_other(launch, *connection); });
  }
  return std::shared_ptr<Communicator>(new Communicator(std::move(connection)));
}

std::shared_ptr<Communicator> Communicator::unconnected(int64_t rank, int64_t size) {
  TORCH_CHECK_VALUE(size >= 1 && rank >= 0 && rank < size, "process group: expected a rank below its size, got rank ",
                    rank, " of ", size);
  auto connection = std::make_shared<Connection>();
  connection->rank = rank;
  connection->size = size;
  connection->is_connected = size == 1;
  connection->failed = " on rank " + std::to_string(rank) + " of " + std::to_string(size) + " failed: ";
  connection->not_known = "its process group tells rank and size alone";
  if (size > 1) {
    connection->backend = [](c10::DeviceType) -> Connection::Backend {
      C10_THROW_ERROR(Error, "it reaches no other rank");
    };
  }
  return std::shared_ptr<Communicator>(new Communicator(std::move(connection)));
}

std::shared_ptr<Communicator> Communicator::split(const std::string& name) const {
  auto connection = std::make_shared<Connection>(*connection_);
  connection->path += "/" + name;
  if (!connection->is_alone()) {
    connection->guarded("split", [&] {
      // Splits of one name are told apart by their number, which each rank counts in the store.
      const auto count = [store = connection->store,
                          key = connection->path + ".splits-of-rank-" + std::to_string(connection->rank)] {
        return store->add(key, 1);
      };
      connection->path += std::to_string(Connection::in_time("the store does not answer", connection->deadline, count));
      connection->connect_beside(connection->path, connection->deadline);
    });
  }
  return std::shared_ptr<Communicator>(new Communicator(std::move(connection)));
}

Pending Communicator::all_reduce_(const at::Tensor& x) const {
  if (const auto device = connection_->detour(x.device())) {
    return there_and_back(x, *device, [&](const at::Tensor& there) { return all_reduce_(there); });
  }
  return connection_->launch_async("all_reduce", x.device().type(), x.nbytes(), [&](Backend& backend) {
    std::vector<at::Tensor> tensors = {x};
    return backend.allreduce(tensors);
  });
}

ops::Arriving Communicator::start_collect(const at::Tensor& mine, int64_t to) const {
  TORCH_CHECK_VALUE(to >= 0 && to < size(), "expected a rank from 0 to ", size() - 1, ", got ", to);
  at::Tensor input = mine.view({-1});
  if (size() == 1) return ops::Arriving(input);
  at::Tensor all = at::empty({rank() == to ? size() * mine.numel() : 0}, mine.options());
  if (const auto device = connection_->detour(mine.device())) {
    return brought_back(start_collect(mine.to(*device), to), all);
  }
  return connection_->arriving("reduce", input, all, mine.nbytes(), [&](Backend& backend) {
    std::vector<int64_t> received(static_cast<size_t>(size()), all.numel() / size()), parts(received.size(), 0);
    parts[static_cast<size_t>(to)] = mine.numel();
    return backend.alltoall_base(all, input, received, parts);
  });
}

Pending Communicator::reduce_(const at::Tensor& x, int64_t to) const {
  if (size() == 1) return {};
  // Sent to one and summed there: Gloo's reduce sends twice as much, in an order of its own.
  const auto terms = std::make_shared<ops::Arriving>(start_collect(x, to));
  return Pending([terms, x] {
    const at::Tensor all = terms->take();
    if (all.numel() == 0) return;
    const at::Tensor rows = all.view({-1, x.numel()}), sum = x.view({-1});
    sum.copy_(rows[0]);
    for (int64_t i = 1; i < rows.size(0); ++i) sum.add_(rows[i]);
  });
}

Pending Communicator::broadcast_(const at::Tensor& x, int64_t from) const {
  if (const auto device = connection_->detour(x.device())) {
    return there_and_back(x, *device, [&](const at::Tensor& there) { return broadcast_(there, from); });
  }
  return connection_->launch_async("broadcast", x.device().type(), x.nbytes(), [&](Backend& backend) {
    std::vector<at::Tensor> tensors = {x};
    c10d::BroadcastOptions options;
    options.rootRank = from;
    return backend.broadcast(tensors, options);
  });
}

void Communicator::barrier() const {
  if (connection_->detour(at::kCPU)) {  // a device's own orders streams alone
    int32_t nothing = 0;
    return all_reduce_max({&nothing, 1});
  }
  connection_->launch_async("barrier", at::kCPU, 0, [](Backend& backend) { return backend.barrier(); }).wait();
}

void Communicator::all_reduce_max(std::span<int32_t> values) const {
  const at::Tensor here = at::from_blob(values.data(), {static_cast<int64_t>(values.size())}, at::kInt);
  const auto device = connection_->detour(here.device());
  const at::Tensor there = device ? here.to(*device) : here;
  const auto start = [&](Backend& backend) {
    std::vector<at::Tensor> tensors = {there};
    c10d::AllreduceOptions options;
    options.reduceOp = c10d::ReduceOp::MAX;
    return backend.allreduce(tensors, options);
  };
  connection_->launch_async("all_reduce_max", there.device().type(), values.size_bytes(), start).wait();
  if (device) here.copy_(there);
}

ops::Arriving Communicator::start_gather(const at::Tensor& mine, const at::Tensor& all) const {
  if (size() == 1) return ops::Arriving(all.copy_(mine));
  if (const auto device = connection_->detour(mine.device())) {
    return brought_back(start_gather(mine.to(*device), at::empty(all.sizes(), all.options().device(*device))), all);
  }
  return connection_->arriving("all_gather", mine, all, all.nbytes(), [&](Backend& backend) {
    at::Tensor input = mine, output = all;
    return backend._allgather_base(output, input);
  });
}

ops::Arriving Communicator::start_exchange(const at::Tensor& parts) const {
  if (size() == 1) return ops::Arriving(parts);
  at::Tensor received = at::empty_like(parts);
  if (const auto device = connection_->detour(parts.device())) {
    return brought_back(start_exchange(parts.to(*device)), received);
  }
  return connection_->arriving("all_to_all", parts, received, received.nbytes(), [&](Backend& backend) {
    at::Tensor input = parts;
    std::vector<int64_t> equal;
    return backend.alltoall_base(received, input, equal, equal);
  });
}

}  // namespace plimsoll::shard
