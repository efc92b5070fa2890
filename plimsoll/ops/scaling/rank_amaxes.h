// Amaxes that ranks have to agree on. They travel as the bits of FP32 numbers without a sign, whose order as integers
// is NaN > Inf > finite.
#pragma once

#include <memory>
#include <span>

#include "plimsoll/ops/ranks/rank_group.h"
#include "plimsoll/ops/scaling/scaling_step.h"

namespace plimsoll::ops {

// The largest of the ranks' amaxes, in memory of its own.
AmaxSlot largest_amax(const RankGroup& group, const AmaxSlot& amax);

// Replaces each amax by the largest of the ranks'. The first collective has one size whatever the ranks bring, and with
// it they compare how many that is: another number is an error on all of them. It takes kAmaxesAtOnce along; only more
// of them make a second one necessary.
inline constexpr size_t kAmaxesAtOnce = 1022;
void reduce_amaxes(const RankGroup& group, std::span<float> amaxes);

// For a scope whose amaxes are reduced over the group.
std::shared_ptr<const AmaxReduction> amax_reduction(std::shared_ptr<const RankGroup> group);

}  // namespace plimsoll::ops
