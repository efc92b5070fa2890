#include "plimsoll/watch/session.h"

#include <algorithm>
#include <utility>

namespace plimsoll::watch {

static_assert(kModeNames.size() == static_cast<size_t>(Mode::kShadow) + 1, "a mode has no name");
namespace {
thread_local Session* in_force = nullptr;
}

Session::Session(const SessionOptions& options) : options_(options) {
  if (mode() == Mode::kTrap) traps_.emplace();
  previous_ = std::exchange(in_force, mode() == Mode::kOff ? nullptr : this);
}

Session::~Session() { in_force = previous_; }

std::vector<Record> Session::warnings() const {
  std::vector<Record> low = slots_.records();
  std::erase_if(
      low, [&](const Record& record) { return record.non_finite == 0 && record.headroom_bits >= options_.warn_bits; });
  std::stable_sort(low.begin(), low.end(), is_worse);
  return low;
}

Session* current() { return in_force; }

Adopt::Adopt(Session* session) : previous_(std::exchange(in_force, session)) {}
Adopt::~Adopt() { in_force = previous_; }

void report(std::string_view name, const Observation& observation) {
  if (in_force != nullptr) in_force->slots().report(name, observation);
}

}  // namespace plimsoll::watch
