// Communicator over process groups that Python's torch.distributed has made.
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

#include "plimsoll/shard/communicator/connection.h"
#include "plimsoll/shard/communicator/gloo.h"
#include "plimsoll/shard/communicator/unequal_collectives.h"

namespace plimsoll::shard {
namespace {

using SharedPeers = std::shared_ptr<const Peers>;

// The peers of a group whose ranks meet in a TCPStore, once for it; elsewhere none: each beat would make a FileStore's
// file longer.
SharedPeers peers_of(const c10d::ProcessGroup& group, const std::string& name) {
  static std::mutex mutex;
  static std::map<const c10d::ProcessGroup*, std::weak_ptr<const Peers>> known;
  const c10::intrusive_ptr<c10d::Store> store = group.getStore();
  auto* const prefixed = dynamic_cast<c10d::PrefixStore*>(store.get());
  const auto bare = prefixed == nullptr ? store : prefixed->getUnderlyingNonPrefixStore();
  if (group.getSize() == 1 || dynamic_cast<c10d::TCPStore*>(bare.get()) == nullptr) return nullptr;
  const std::lock_guard<std::mutex> lock(mutex);
  std::weak_ptr<const Peers>& kept = known[&group];
  SharedPeers peers = kept.lock();
  if (peers == nullptr) {
    // A process that is stopped leaves whoever connects to its store waiting without a limit.
    const auto connected = within(store->getTimeout(), [store] { return store->clone(); });
    if (!connected) {
      C10_THROW_ERROR(DistBackendError, "the process group '" + name + "': its store, which rank 0 holds unless " +
                                            "torchrun does, does not answer; rank 0 has ended or stands still");
    }
    const auto own = c10::make_intrusive<c10d::PrefixStore>("plimsoll/" + name, *connected);
    // Rank 0 has the store, unless torchrun does.
    kept = peers = std::make_shared<const Peers>(own, group.getRank(), group.getSize(), group.getRank() == 0);
  }
  return peers;
}

// The device that the group is bound to, or else the current one of those that its backend is for.
std::optional<c10::Device> host_detour(c10d::ProcessGroup& group) {
  const std::vector<c10::Device> devices = group.getDeviceTypes();
  if (devices.empty() || std::ranges::any_of(devices, &c10::Device::is_cpu)) return std::nullopt;
  if (const auto bound = group.getBoundDeviceId()) return bound;
  return c10::impl::VirtualGuardImpl(devices.front().type()).getDevice();
}

std::shared_ptr<Connection> connection_over(const std::string& name) {
  const c10::intrusive_ptr<c10d::ProcessGroup> group = c10d::resolve_process_group(name);
  auto connection = std::make_shared<Connection>();
  connection->rank = group->getRank();
  connection->size = group->getSize();
  connection->path = "plimsoll";
  connection->failed =
      " over the process group '" + name + "' of " + std::to_string(connection->size) + " ranks failed; ";
  connection->not_known = "a rank may have ended, or not come here";
  connection->backend = [name](c10::DeviceType device) {
    return c10d::resolve_process_group(name)->getBackend(device);
  };
  connection->host_detour = [name] { return host_detour(*c10d::resolve_process_group(name)); };
  return connection;
}

}  // namespace

std::shared_ptr<Communicator> Communicator::over(const std::string& name) {
  const c10::intrusive_ptr<c10d::ProcessGroup> group = c10d::resolve_process_group(name);
  std::shared_ptr<Connection> connection = connection_over(name);
  if (connection->size > 1) explain_unequal_collectives();
  connection->peers = peers_of(*group, name);
  connection->store = group->getStore();
  if (connection->store != nullptr) connection->deadline = connection->store->getTimeout();
  connection->make_backend = [name, backend = connection->backend](const Connection::Store& store) {
    TORCH_CHECK(!host_detour(*c10d::resolve_process_group(name)),
                "split: expected a process group with Gloo for the CPU (\"cpu:gloo,cuda:nccl\"), got one without");
    return gloo_beside(store, backend(c10::DeviceType::CPU));
  };
  return std::shared_ptr<Communicator>(new Communicator(std::move(connection)));
}

std::shared_ptr<Communicator> Communicator::over_unwatched(const std::string& name) {
  return std::shared_ptr<Communicator>(new Communicator(connection_over(name)));
}

}  // namespace plimsoll::shard
