#include "plimsoll/kernels/quantize/error_statistic.h"

#include <array>
#include <cmath>

namespace plimsoll::kernels {
namespace {

float share(int64_t count, int64_t of) {
  return of == 0 ? 0.0f : static_cast<float>(static_cast<double>(count) / static_cast<double>(of));
}

}  // namespace

QuantizeStatistic TileErrors::joined() const {
  std::array<double, kErrorClasses> error = {}, squares = {};
  int64_t saturated = 0, flushed = 0, nonzero = 0;
  for (size_t tile = 0; tile < tiles_.size(); ++tile) {
    const ErrorSums& sums = tiles_[tile];
    for (int64_t column = 0; column < kErrorClasses; ++column) {
      const auto of_tile = static_cast<size_t>(column);
      const auto of_matrix = static_cast<size_t>((first_cols_[tile] + column) % kErrorClasses);
      error[of_matrix] += double{sums.error[of_tile]};
      squares[of_matrix] += double{sums.squares[of_tile]};
    }
    saturated += sums.saturated;
    flushed += sums.flushed;
    nonzero += sums.nonzero;
  }
  double all_error = 0, all_squares = 0, relative = 0;
  int64_t classes = 0;
  for (size_t column = 0; column < error.size(); ++column) {
    if (squares[column] == 0) continue;
    relative += error[column] / squares[column];
    all_error += error[column];
    all_squares += squares[column];
    ++classes;
  }
  if (classes == 0) return {};
  return {.error = static_cast<float>(std::sqrt(relative / static_cast<double>(classes))),
          .norm_error = static_cast<float>(std::sqrt(all_error / all_squares)),
          .saturated = share(saturated, nonzero),
          .flushed = share(flushed, nonzero)};
}

}  // namespace plimsoll::kernels
