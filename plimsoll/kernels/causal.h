// Causal rules of scores [queries, keys]. With as many queries as keys the two are one.
#pragma once

#include <cstdint>

#include "plimsoll/format/host_device.h"

namespace plimsoll::kernels {

enum class Causal : uint8_t {
  kNone,         // a query sees every key
  kTopLeft,      // query i sees keys 0 .. i: both count from the first token
  kBottomRight,  // query i sees keys 0 .. i + keys - queries: the last query is the last key's, as in decoding
};

// Difference between the number of the last key that a query sees and the query's own. Internal linkage, because ISA
// files use it.
[[maybe_unused]] PLIMSOLL_HD static constexpr int64_t causal_offset(Causal causal, int64_t queries, int64_t keys) {
  return causal == Causal::kBottomRight ? keys - queries : 0;
}

}  // namespace plimsoll::kernels
