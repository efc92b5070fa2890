// Gloo, whose headers no other file needs. Its code is inside libtorch.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace plimsoll::shard {

// address: of rank 0. On the loopback, so are all; otherwise each takes the interface that Gloo finds for its host
// name, or the one that GLOO_SOCKET_IFNAME names, as torch.distributed does. Returns when all ranks are connected.
c10::intrusive_ptr<c10d::Backend> gloo(const c10::intrusive_ptr<c10d::Store>& store, int64_t rank, int64_t size,
                                       const std::string& address, std::chrono::milliseconds deadline);

// Another one of the same ranks over the same devices, with the same deadline. Throws c10::Error where `other` is not
// Gloo's.
c10::intrusive_ptr<c10d::Backend> gloo_beside(const c10::intrusive_ptr<c10d::Store>& store,
                                              const c10::intrusive_ptr<c10d::Backend>& other);

}  // namespace plimsoll::shard
