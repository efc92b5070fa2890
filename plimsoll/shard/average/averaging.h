// Average of gradients over the ranks: divided before the sum and after it, so that neither the terms vanish nor the
// sum overflows in a narrow format. Source: fairscale's FullyShardedDataParallel.
#pragma once

#include <cstdint>

namespace plimsoll::shard {

struct Averaging {
  double predivide = 1;   // each rank's gradients, before they are summed
  double postdivide = 1;  // the sum
};

// predivide * postdivide = world_size >= 1. predivide starts at 1 and doubles while it divides world_size and is less
// than world_size / predivide.
Averaging averaging_over(int64_t world_size);

// With a factor of the user's. Throws std::invalid_argument unless it is positive and finite.
Averaging averaging_over(int64_t world_size, double predivide);

}  // namespace plimsoll::shard
