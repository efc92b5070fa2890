// Losses of a quantization: the statistic that kernels give, and the sums of tiles that it is made of.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace plimsoll::kernels {

// Losses of the codes, found on a pass over x and the codes of each piece while both are in a core's caches; the codes are the
// same with and without. y is x in some unit for all of it, q(y) its code's value. 0 for an x without elements that are
// not zero; NaN where x holds one, or Inf. FP32 sums of a tile (at most 65,536 elements), tiles in double in one order.
struct QuantizeStatistic {
  // Root of the mean, over 64 classes of columns (those equal modulo 64) whose squares are not all zero, of sum (y - q(y))^2 / sum y^2:
  // a column of outliers hides the errors of its own class alone.
  float error = 0;
  float norm_error = 0;  // root of sum (y - q(y))^2 / sum y^2
  float saturated = 0;   // share of the elements that are not zero and lie beyond the largest code
  float flushed = 0;     // share of them whose code is zero
  float row_error = 0;   // as `error`, over 64 classes of rows
};

inline constexpr int64_t kErrorClasses = 64;

// Sums over one tile. A class of columns is those that are equal modulo 64, counted from the tile's first.
struct ErrorSums {
  double unit = 1;                                                       // of y, on a scale for the matrix
  float error[kErrorClasses];                                            // of (y - q(y))^2
  float squares[kErrorClasses];                                          // of y^2
  int64_t saturated, flushed, nonzero;                                   // elements
  float row_error[kErrorClasses] = {}, row_squares[kErrorClasses] = {};  // the same by classes of the matrix's rows
};

// Sums of all tiles, each of which one thread sets.
class TileErrors {
 public:
  // No tiles: nobody wants the statistic.
  explicit TileErrors(int64_t tiles) : tiles_(static_cast<size_t>(tiles)), first_cols_(tiles_.size()) {}

  bool are_wanted() const { return !tiles_.empty(); }
  // Sums of a tile whose first column is that one of the matrix.
  ErrorSums& of(int64_t tile, int64_t first_col) {
    first_cols_[static_cast<size_t>(tile)] = first_col;
    return tiles_[static_cast<size_t>(tile)];
  }

  QuantizeStatistic joined() const {
    Classes columns, rows;
    int64_t saturated = 0, flushed = 0, nonzero = 0;
    for (size_t tile = 0; tile < tiles_.size(); ++tile) {
      const ErrorSums& sums = tiles_[tile];
      const double unit = sums.unit * sums.unit;
      for (int64_t column = 0; column < kErrorClasses; ++column) {
        const auto of_tile = static_cast<size_t>(column);
        const auto of_matrix = static_cast<size_t>((first_cols_[tile] + column) % kErrorClasses);
        columns.error[of_matrix] += unit * double{sums.error[of_tile]};
        columns.squares[of_matrix] += unit * double{sums.squares[of_tile]};
        rows.error[of_tile] += unit * double{sums.row_error[of_tile]};
        rows.squares[of_tile] += unit * double{sums.row_squares[of_tile]};
      }
      saturated += sums.saturated;
      flushed += sums.flushed;
      nonzero += sums.nonzero;
    }
    double all_error = 0, all_squares = 0;
    for (size_t column = 0; column < columns.error.size(); ++column) {
      all_error += columns.error[column];
      all_squares += columns.squares[column];
    }
    if (all_squares == 0) return {};
    return {.error = static_cast<float>(std::sqrt(columns.mean())),
            .norm_error = static_cast<float>(std::sqrt(all_error / all_squares)),
            .saturated = share(saturated, nonzero),
            .flushed = share(flushed, nonzero),
            .row_error = static_cast<float>(std::sqrt(rows.mean()))};
  }

 private:
  struct Classes {
    std::array<double, kErrorClasses> error = {}, squares = {};

    // The mean of the classes' relative squared errors.
    double mean() const {
      double sum = 0;
      int64_t classes = 0;
      for (size_t i = 0; i < error.size(); ++i) {
        if (squares[i] == 0) continue;
        sum += error[i] / squares[i];
        ++classes;
      }
      return classes == 0 ? 0 : sum / static_cast<double>(classes);
    }
  };

  static float share(int64_t count, int64_t of) {
    return of == 0 ? 0.0f : static_cast<float>(static_cast<double>(count) / static_cast<double>(of));
  }

  std::vector<ErrorSums> tiles_;
  std::vector<int64_t> first_cols_;
};

}  // namespace plimsoll::kernels
