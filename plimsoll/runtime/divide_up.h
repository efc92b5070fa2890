// Pieces of one size that cover a whole.
#pragma once

#include <cstdint>

namespace plimsoll::runtime {

// x / y rounded up, for x >= 0 and y > 0 whose sum fits.
constexpr int64_t divide_up(int64_t x, int64_t y) { return (x + y - 1) / y; }

}  // namespace plimsoll::runtime
