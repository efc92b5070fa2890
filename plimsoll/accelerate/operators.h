// The operators of torch that have kernels of ours to try.
#pragma once

#include <array>
#include <string_view>
#include <vector>

#include "plimsoll/accelerate/rules.h"
#include "plimsoll/ops/torch_internals/replaced_kernels.h"

namespace plimsoll::acceleration {

enum class Operator : uint8_t { kMm, kAddmm, kBmm, kBaddbmm };
inline constexpr std::array<std::string_view, 4> kOperatorNames = {"mm", "addmm", "bmm", "baddbmm"};

// A variant of an operator. `attempt` puts results in the place of the arguments and returns kReplaced, or touches nothing.
struct Variant {
  const char* name;  // after aten::, with the overload
  Operator op;       // under which it is counted
  Outcome (*attempt)(ops::CallStack& stack);
};

std::vector<Variant> product_variants();

}  // namespace plimsoll::acceleration
