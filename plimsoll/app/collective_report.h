// Duration of the collectives of training steps, and the part of it that the training had to wait.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "plimsoll/watch/transfers.h"

namespace plimsoll::app {

// The collectives of one kind, per step.
struct CollectiveRow {
  std::string name;
  double calls = 0;
  double gigabytes = 0;
  double seconds = 0;         // from the start of each to its end; those that overlap count twice
  double waited_seconds = 0;  // that training stood still for them
};

struct CollectiveReport {
  std::vector<CollectiveRow> rows;  // the longest first; none: a process alone
  double seconds = 0;               // of a step in which some collective was under way
  double waited_seconds = 0;
  double hidden_share() const { return seconds > waited_seconds ? 1 - waited_seconds / seconds : 0; }
};

CollectiveReport collectives_of(const watch::Transfers& transfers, int64_t steps);

// Chrome's trace events, as those of write_trace, on lines of their own: as few as show each collective beside those
// that it overlaps.
void add_collectives(nlohmann::json& events, const watch::Transfers& transfers, int64_t start_ns);

}  // namespace plimsoll::app
