// A checkpoint's word on what a run's bits depend on.
#pragma once

#include <nlohmann/json.hpp>

#include "plimsoll/app/error.h"

namespace plimsoll::app {

// Throws unless the checkpoint's state says the same as this run. otherwise: what holds for a checkpoint that does not
// say it.
inline void expect_same(const nlohmann::json& state, const char* name, const nlohmann::json& ours,
                        const nlohmann::json& otherwise = {}) {
  const nlohmann::json theirs = state.value(name, otherwise);
  if (theirs != ours) fail("checkpoint: expected a run with {} {}, got {}", name, ours.dump(), theirs.dump());
}

}  // namespace plimsoll::app
