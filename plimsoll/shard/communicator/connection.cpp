#include "plimsoll/shard/communicator/connection.h"

#include <string_view>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

namespace plimsoll::shard {
namespace {

// The beginning of what Gloo adds to a broken connection: where to look for its cause, which `missing` says better.
constexpr std::string_view kGuessOfGloo = " This is typically caused";

}  // namespace

void Connection::fail(const char* collective, const char* why) const {
  std::string missing = not_known;
  if (peers != nullptr) missing = peers->find_missing();
  if (missing.empty()) missing = "all ranks are alive, so one did not come here in time";
  const std::string whole(why), fact = whole.substr(0, whole.find(kGuessOfGloo));
  C10_THROW_ERROR(DistBackendError, std::string(collective) + failed + missing + "; " + fact);
}

void Connection::connect_beside(const std::string& name, std::chrono::milliseconds limit) {
  const auto under = c10::make_intrusive<c10d::PrefixStore>(name, store);
  // A rank that is connected may end at once, which would break the connection of one that is still connecting.
  const auto make_for_all = [under, limit, make = make_backend, size = size] {
    const Backend mine = make(under);
    if (under->add("connected", 1) == size) under->set("all connected", std::string("yes"));
    under->wait({"all connected"}, limit);
    return mine;
  };
  const Backend made = in_time("not all ranks came", limit, make_for_all);
  backend = [made](c10::DeviceType) { return made; };
  host_detour = nullptr;
}

// A rank whose data this one waits for may itself wait for the one that is gone, so word of that counts, too.
void Connection::wait(const Work& work, bool in_slices) const {
  constexpr std::chrono::milliseconds kSlice(500);
  if (!in_slices) {
    work->wait();
    return;
  }
  while (true) {
    try {
      work->wait(kSlice);
      return;
    } catch (const std::exception&) {
      if (work->isCompleted()) {
        work->wait();  // it may have ended well at the end of the slice
        return;
      }
      if (!peers->failure().empty()) throw;
    }
  }
}

}  // namespace plimsoll::shard
