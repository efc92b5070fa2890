#include "plimsoll/shard/communicator/gloo.h"

#include <cstdlib>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

namespace plimsoll::shard {

using c10d::ProcessGroupGloo;

c10::intrusive_ptr<c10d::Backend> gloo(const c10::intrusive_ptr<c10d::Store>& store, int64_t rank, int64_t size,
                                       const std::string& address, std::chrono::milliseconds deadline) {
  const auto options = ProcessGroupGloo::Options::create(deadline);
  const char* const interface = std::getenv("GLOO_SOCKET_IFNAME");
  if (interface != nullptr) {
    options->devices.push_back(ProcessGroupGloo::createDeviceForInterface(interface));
  } else if (address == "127.0.0.1" || address == "localhost") {
    options->devices.push_back(ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  } else {
    options->devices.push_back(ProcessGroupGloo::createDefaultDevice());
  }
  return c10::make_intrusive<ProcessGroupGloo>(store, static_cast<int>(rank), static_cast<int>(size), options);
}

}  // namespace plimsoll::shard
