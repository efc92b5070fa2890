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

c10::intrusive_ptr<c10d::Backend> gloo_beside(const c10::intrusive_ptr<c10d::Store>& store,
                                              const c10::intrusive_ptr<c10d::Backend>& other) {
  auto* const known = dynamic_cast<ProcessGroupGloo*>(other.get());
  TORCH_CHECK(known != nullptr, "split: expected a process group over gloo, got ", other->getBackendName());
  const auto options = ProcessGroupGloo::Options::create(known->getOptions()->timeout);
  options->devices = known->getOptions()->devices;
  return c10::make_intrusive<ProcessGroupGloo>(store, known->getRank(), known->getSize(), options);
}

}  // namespace plimsoll::shard
