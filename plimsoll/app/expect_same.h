// A checkpoint's word on what a run's bits depend on.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "plimsoll/app/error.h"

namespace plimsoll::app {

// Throws UsageError unless the checkpoint's state says the same as this run. otherwise: what holds for a checkpoint that does not
// say it.
inline void expect_same(const nlohmann::json& state, const char* name, const nlohmann::json& ours,
                        const nlohmann::json& otherwise = {}) {
  const nlohmann::json theirs = state.value(name, otherwise);
  if (theirs != ours) refuse("checkpoint: expected a run with {} {}, got {}", name, ours.dump(), theirs.dump());
}

// The same of the adapters that train, member by member; null: the whole model trains.
inline void expect_same_adapters(const nlohmann::json& theirs, const nlohmann::json& ours) {
  if (theirs == ours) return;
  const auto kind = [](const nlohmann::json& adapters) { return adapters.is_null() ? "a whole model" : "adapters"; };
  if (theirs.is_null() || ours.is_null()) {
    refuse("checkpoint: expected a run of {}, got one of {}", kind(ours), kind(theirs));
  }
  std::string expected, got;
  for (const auto& [name, value] : ours.items()) {
    const nlohmann::json found = theirs.value(name, nlohmann::json());
    if (found == value) continue;
    expected += io::compose("{}{} {}", expected.empty() ? "" : ", ", name, value.dump());
    got += io::compose("{}{} {}", got.empty() ? "" : ", ", name, found.dump());
  }
  if (!expected.empty()) refuse("checkpoint: expected adapters with {}, got {}", expected, got);
}

}  // namespace plimsoll::app
