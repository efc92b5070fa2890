#include "plimsoll/shard/average/averaging.h"

#include <cmath>
#include <stdexcept>
#include <string>

namespace plimsoll::shard {

Averaging averaging_over(int64_t world_size) {
  int64_t factor = 1;
  while (world_size % factor == 0 && world_size / factor > factor) factor *= 2;
  return averaging_over(world_size, static_cast<double>(factor));
}

Averaging averaging_over(int64_t world_size, double predivide) {
  if (!(predivide > 0) || !std::isfinite(predivide)) {
    throw std::invalid_argument("gradient_predivide_factor: expected a positive number, got " +
                                std::to_string(predivide));
  }
  return {.predivide = predivide, .postdivide = static_cast<double>(world_size) / predivide};
}

}  // namespace plimsoll::shard
