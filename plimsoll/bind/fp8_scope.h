// Scopes of plimsoll.pytorch.autocast: amp::Fp8Autocast.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "plimsoll/amp/fp8_autocast.h"

namespace plimsoll::bind {

// Ranks whose amaxes the outermost scope reduces.
struct ReducingRanks {
  std::optional<std::string_view> group = {};  // by name; none: this rank alone
  int64_t size = 1;
  bool chosen = false;  // by the user, who may not choose another one inside of an enabled scope
};

// Enters one on the calling thread and gives its number. owner: as of enter_scope (scopes.h).
int64_t enter_fp8_scope(int64_t owner, amp::Fp8AutocastOptions options, const ReducingRanks& ranks);

}  // namespace plimsoll::bind
