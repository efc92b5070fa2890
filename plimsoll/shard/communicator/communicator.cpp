#include "plimsoll/shard/communicator/communicator.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <tuple>
#include <utility>
#include <vector>

#include "plimsoll/shard/communicator/gloo.h"
#include "plimsoll/shard/communicator/peers.h"
#include "plimsoll/shard/communicator/within.h"
#include "plimsoll/watch/profile.h"
#include "plimsoll/watch/transfers.h"

namespace plimsoll::shard {

using c10d::Backend;
using c10d::Store;
using Work = c10::intrusive_ptr<c10d::Work>;

namespace {

constexpr std::chrono::milliseconds kSlice(500);  // of waiting
// After the deadline, in which c10d's own error, which says more, may come.
constexpr std::chrono::milliseconds kGrace(1000);

c10::intrusive_ptr<Store> store_of(const Launch& launch, std::chrono::milliseconds deadline, bool serves) {
  c10d::TCPStoreOptions options;
  options.port = launch.port;
  options.isServer = serves;
  options.numWorkers = static_cast<size_t>(launch.world_size);
  options.waitWorkers = false;
  options.timeout = deadline;
  return c10::make_intrusive<c10d::TCPStore>(launch.address, options);
}

}  // namespace

// The connection of one process; alone, it has neither backend nor peers.
struct Communicator::Connection : std::enable_shared_from_this<Connection> {
  Launch launch;
  CommunicatorOptions options;
  c10::intrusive_ptr<Store> store;
  std::shared_ptr<const Peers> peers;
  c10::intrusive_ptr<Backend> backend;
  std::string path = "plimsoll";  // of what this group leaves in the store
  mutable int64_t splits = 0;

  [[noreturn]] void fail(const char* collective, const char* why) const {
    const std::string missing = peers ? peers->find_missing() : "it has met no other rank";
    C10_THROW_ERROR(
        DistBackendError,
        std::string(collective) + " on rank " + std::to_string(launch.rank) + " of " +
            std::to_string(launch.world_size) + " failed (deadline " + std::to_string(options.deadline.count()) +
            " ms): " + (missing.empty() ? "all ranks are alive, so one did not come here in time" : missing) + "; " +
            why);
  }

  // c10d's calls into the store wait for an answer without a limit, and a process that is stopped gives none.
  template <class Body>
  auto in_time(const std::string& silent, std::chrono::milliseconds limit, Body body) const {
    auto result = within(limit + kGrace, std::move(body));
    if (!result) throw std::runtime_error(silent);
    return std::move(*result);
  }

  template <class Body>
  auto guarded(const char* collective, Body body) const {
    try {
      return body();
    } catch (const c10::Error& error) {
      fail(collective, error.what_without_backtrace());
    } catch (const std::exception& error) {
      fail(collective, error.what());
    }
  }

  // Within the deadline, all of it.
  void find_each_other() {
    using Clock = std::chrono::steady_clock;
    const Clock::time_point start = Clock::now();
    const bool serves = launch.rank == 0 && !launch.store_is_running;
    const auto connect = [launch = launch, deadline = options.deadline, serves] {
      const auto shared = store_of(launch, deadline, serves);
      return std::pair(shared, store_of(launch, deadline, false));
    };
    const std::string place = launch.address + ":" + std::to_string(launch.port);
    c10::intrusive_ptr<Store> own;
    std::tie(store, own) =
        in_time(place + ", where the ranks' store should be, does not answer", options.deadline, connect);
    peers = std::make_shared<Peers>(c10::make_intrusive<c10d::PrefixStore>("plimsoll", own), launch.rank,
                                    launch.world_size, serves);
    const auto passed = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start);
    connect_all("plimsoll/world", std::max(options.deadline - passed, std::chrono::milliseconds(1)));
  }

  // A backend of its own, over what stands under `name` in the store.
  void connect_all(const std::string& name, std::chrono::milliseconds limit) {
    const auto under = c10::make_intrusive<c10d::PrefixStore>(name, store);
    const auto make = [under, launch = launch, deadline = options.deadline] {
      return gloo(under, launch.rank, launch.world_size, launch.address, deadline);
    };
    backend = in_time("not all ranks came", limit, make);
  }

  // A rank whose data this one waits for may itself wait for the one that is gone, so word of that counts, too.
  void wait(const Work& work) const {
    while (true) {
      try {
        work->wait(kSlice);
        return;
      } catch (const std::exception&) {
        if (work->isCompleted()) throw;
        if (!peers->failure().empty()) throw;
      }
    }
  }

  // start() -> Work. bytes: that it is about, for the record.
  template <class Start>
  Pending launch_async(const char* collective, size_t bytes, Start start) const {
    if (backend == nullptr) return {};
    const auto transfer = watch::Transfer::start(collective, static_cast<double>(bytes));
    const Work work = guarded(collective, start);
    if (transfer) work->getFuture()->addCallback([transfer](c10::ivalue::Future&) { transfer->arrive(); });
    return Pending([self = shared_from_this(), collective, work, transfer] {
      const watch::Span span(collective);
      const auto wait = [&] { self->guarded(collective, [&] { self->wait(work); }); };
      transfer ? transfer->wait_with(wait) : wait();
    });
  }

  template <class Start>
  ops::Arriving arriving(const char* collective, const at::Tensor& bytes, Start start) const {
    const auto pending = std::make_shared<Pending>(launch_async(collective, bytes.nbytes(), start));
    return ops::Arriving(bytes, [pending] { pending->wait(); });
  }
};

void Pending::wait() {
  if (const auto wait = std::exchange(wait_, nullptr)) wait();
}

Communicator::Communicator(std::shared_ptr<const Connection> connection) : connection_(std::move(connection)) {}
Communicator::~Communicator() = default;

int64_t Communicator::rank() const { return connection_->launch.rank; }
int64_t Communicator::size() const { return connection_->launch.world_size; }

std::shared_ptr<Communicator> Communicator::connect(const Launch& launch, const CommunicatorOptions& options) {
  auto connection = std::make_shared<Connection>();
  connection->launch = launch;
  connection->options = options;
  if (launch.world_size > 1) connection->guarded("connecting", [&] { connection->find_each_other(); });
  return std::shared_ptr<Communicator>(new Communicator(std::move(connection)));
}

std::shared_ptr<Communicator> Communicator::split(const std::string& name) const {
  auto connection = std::make_shared<Connection>(*connection_);
  connection->path += "/" + name + std::to_string(connection_->splits++);
  connection->splits = 0;
  if (connection->backend != nullptr) {
    connection->guarded("split", [&] { connection->connect_all(connection->path, connection->options.deadline); });
  }
  return std::shared_ptr<Communicator>(new Communicator(std::move(connection)));
}

Pending Communicator::all_reduce_(const at::Tensor& x) const {
  return connection_->launch_async("all_reduce", x.nbytes(), [&] {
    std::vector<at::Tensor> tensors = {x};
    return connection_->backend->allreduce(tensors);
  });
}

Pending Communicator::reduce_(const at::Tensor& x, int64_t to) const {
  if (size() == 1) return {};
  // Sent to one and summed there: Gloo's reduce sends twice as much, in an order of its own.
  const bool mine = rank() == to;
  const at::Tensor terms = at::empty({mine ? size() * x.numel() : 0}, x.options());
  const auto sent = std::make_shared<Pending>(connection_->launch_async("reduce", x.nbytes(), [&] {
    at::Tensor input = x.view({-1}), output = terms;
    std::vector<int64_t> received(static_cast<size_t>(size()), mine ? x.numel() : 0), parts(received.size(), 0);
    parts[static_cast<size_t>(to)] = x.numel();
    return connection_->backend->alltoall_base(output, input, received, parts);
  }));
  return Pending([sent, terms, mine, x] {
    sent->wait();
    if (!mine) return;
    const at::Tensor rows = terms.view({-1, x.numel()}), sum = x.view({-1});
    sum.copy_(rows[0]);
    for (int64_t i = 1; i < rows.size(0); ++i) sum.add_(rows[i]);
  });
}

Pending Communicator::broadcast_(const at::Tensor& x, int64_t from) const {
  return connection_->launch_async("broadcast", x.nbytes(), [&] {
    std::vector<at::Tensor> tensors = {x};
    c10d::BroadcastOptions options;
    options.rootRank = from;
    return connection_->backend->broadcast(tensors, options);
  });
}

void Communicator::barrier() const {
  connection_->launch_async("barrier", 0, [&] { return connection_->backend->barrier(); }).wait();
}

void Communicator::all_reduce_max(std::span<int32_t> values) const {
  const auto start = [&] {
    std::vector<at::Tensor> tensors = {at::from_blob(values.data(), {static_cast<int64_t>(values.size())}, at::kInt)};
    c10d::AllreduceOptions options;
    options.reduceOp = c10d::ReduceOp::MAX;
    return connection_->backend->allreduce(tensors, options);
  };
  connection_->launch_async("all_reduce_max", values.size_bytes(), start).wait();
}

ops::Arriving Communicator::start_gather(const at::Tensor& mine, const at::Tensor& all) const {
  if (size() == 1) return ops::Arriving(all.copy_(mine));
  return connection_->arriving("all_gather", all, [&] {
    at::Tensor input = mine, output = all;
    return connection_->backend->_allgather_base(output, input);
  });
}

ops::Arriving Communicator::start_exchange(const at::Tensor& parts) const {
  if (size() == 1) return ops::Arriving(parts);
  at::Tensor received = at::empty_like(parts);
  return connection_->arriving("all_to_all", received, [&] {
    at::Tensor input = parts;
    std::vector<int64_t> equal;
    return connection_->backend->alltoall_base(received, input, equal, equal);
  });
}

}  // namespace plimsoll::shard
