#include "plimsoll/watch/session.h"

#include <algorithm>
#include <utility>

namespace plimsoll::watch {

static_assert(kModeNames.size() == static_cast<size_t>(Mode::kShadow) + 1, "a mode has no name");
namespace {
thread_local Session* session_in_force = nullptr;
}

Session::Session(const SessionOptions& options) : options_(options) {
  if (mode() == Mode::kTrap) traps_.emplace();
  previous_ = std::exchange(session_in_force, mode() == Mode::kOff ? nullptr : this);
}

Session::~Session() { session_in_force = previous_; }

std::vector<Record> Session::warnings() const {
  std::vector<Record> low = slots_.records();
  std::erase_if(
      low, [&](const Record& record) { return record.non_finite == 0 && record.headroom_bits >= options_.warn_bits; });
  std::stable_sort(low.begin(), low.end(), is_worse);
  return low;
}

Session* current() { return session_in_force; }

Adopt::Adopt(Session* session) : previous_(std::exchange(session_in_force, session)) {}
Adopt::~Adopt() { session_in_force = previous_; }

void report(std::string_view name, const Observation& observation) {
  if (session_in_force != nullptr) session_in_force->slots().report(name, observation);
}

}  // namespace plimsoll::watch
