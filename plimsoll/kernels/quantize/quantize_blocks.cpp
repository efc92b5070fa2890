#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "plimsoll/kernels/quantize/quantize.h"
#include "plimsoll/kernels/quantize/quantize_element.h"
#include "plimsoll/kernels/quantize/quantize_loops.h"
#include "plimsoll/kernels/shared_amax.h"
#include "plimsoll/runtime/divide_up.h"
#include "plimsoll/runtime/threads.h"

namespace plimsoll::kernels {
namespace {

constexpr int64_t kUnitCols = 2048;       // of blocks that are narrower: scales and maxima of a unit stay in L1
constexpr int64_t kUnitElements = 32768;  // what a core reads twice from its L2

// The matrix in units: one row of blocks high, some whole blocks wide. A unit finds its maxima, sets its scales and
// encodes.
class BlockQuantizer {
 public:
  explicit BlockQuantizer(const QuantizeBlocks& args)
      : args_(args),
        kernels_(quantize_loops()),
        block_rows_(args.block_rows > 0 ? args.block_rows : std::max<int64_t>(args.rows, 1)),
        block_cols_(args.block_cols > 0 ? args.block_cols : std::max<int64_t>(args.cols, 1)) {
    const int64_t wanted =
        std::clamp<int64_t>(kUnitElements / std::min(block_rows_, std::max<int64_t>(args.rows, 1)), 64, kUnitCols);
    unit_cols_ = std::max<int64_t>(wanted / block_cols_, 1) * block_cols_;
    row_units_ = runtime::divide_up(args.rows, block_rows_);
    col_units_ = runtime::divide_up(args.cols, unit_cols_);
    if (args.statistic == nullptr) return;
    // The first unit has the most slices.
    slices_ = row_units_ * col_units_ == 0 ? 0 : slices(unit_at(0));
    errors_ = TileErrors(row_units_ * col_units_ * slices_);
  }

  void run() {
    const int64_t units = row_units_ * col_units_;
    const int64_t unit_size = std::min(block_rows_, args_.rows) * std::min(unit_cols_, args_.cols);
    if (units < 2 * runtime::threads()) {
      // Few large blocks: threads share each unit.
      for (int64_t unit = 0; unit < units; ++unit) run_unit(unit);
    } else {
      runtime::parallel_for(units, kUnitElements / std::max<int64_t>(unit_size, 1) + 1,
                            [&](int64_t begin, int64_t end) {
                              for (int64_t unit = begin; unit < end; ++unit) run_unit(unit);
                            });
    }
    amax_.store(args_.amax);
    if (args_.statistic != nullptr) *args_.statistic = errors_.joined();
  }

 private:
  struct Unit {
    int64_t row, col, rows, cols;
    int64_t slice_cols;  // columns handed to a tile pass at once
    int64_t groups;      // blocks
  };

  Unit unit_at(int64_t index) const {
    Unit unit;
    unit.row = index / col_units_ * block_rows_;
    unit.col = index % col_units_ * unit_cols_;
    unit.rows = std::min(block_rows_, args_.rows - unit.row);
    unit.cols = std::min(unit_cols_, args_.cols - unit.col);
    unit.slice_cols = std::min(unit.cols, kUnitCols);
    unit.groups = runtime::divide_up(unit.cols, block_cols_);
    return unit;
  }

  static int64_t slice_rows(const Unit& unit) { return std::max<int64_t>(kUnitElements / unit.slice_cols, 1); }
  static int64_t slices(const Unit& unit) {
    return runtime::divide_up(unit.cols, unit.slice_cols) * runtime::divide_up(unit.rows, slice_rows(unit));
  }

  // Calls pass(row, col, rows, cols) on slices of the unit. A unit wider than a slice is a single block.
  template <class Pass>
  void over_slices(const Unit& unit, Pass pass) const {
    const int64_t across = runtime::divide_up(unit.cols, unit.slice_cols), height = slice_rows(unit);
    runtime::parallel_for(slices(unit), 1, [&](int64_t begin, int64_t end) {
      for (int64_t slice = begin; slice < end; ++slice) {
        const int64_t row = slice / across * height, col = slice % across * unit.slice_cols;
        pass(unit.row + row, unit.col + col, std::min(height, unit.rows - row),
             std::min(unit.slice_cols, unit.cols - col));
      }
    });
  }

  const void* x_at(int64_t row, int64_t col) const {
    return static_cast<const char*>(args_.x) + (row * args_.x_stride + col) * format::bytes(args_.x_format);
  }

  // For tile passes. A slice of a single block is one group, be it one column wide.
  int64_t group_cols(const Unit& unit) const {
    return unit.groups == 1 ? std::max<int64_t>(unit.cols, 2) : block_cols_;
  }

  // amaxes starts at zero.
  void find_amaxes(const Unit& unit, int32_t* amaxes) const {
    const auto find = [&](int64_t row, int64_t col, int64_t rows, int64_t cols, int32_t* group_amax) {
      kernels_.amax({x_at(row, col), args_.x_format, rows, cols, args_.x_stride, group_cols(unit), group_amax});
    };
    if (slices(unit) == 1) {
      find(unit.row, unit.col, unit.rows, unit.cols, amaxes);
      return;
    }
    std::array<SharedAmax, kUnitCols> shared;
    over_slices(unit, [&](int64_t row, int64_t col, int64_t rows, int64_t cols) {
      std::array<int32_t, kUnitCols> own;
      std::fill_n(own.begin(), unit.groups, 0);
      find(row, col, rows, cols, own.data());
      for (size_t group = 0; group < static_cast<size_t>(unit.groups); ++group) shared[group].raise(own[group]);
    });
    for (size_t group = 0; group < static_cast<size_t>(unit.groups); ++group) {
      amaxes[group] = std::bit_cast<int32_t>(shared[group].value());
    }
  }

  // Writes the unit's scales and their inverses, 0 where a scale is NaN; returns the largest amax.
  int32_t set_scales(const Unit& unit, const int32_t* amaxes, float* inv_scales) const {
    const int64_t first = unit.row / block_rows_ * args_.scale_stride + unit.col / block_cols_;
    return kernels_.block_scales({.amax = amaxes,
                                  .count = unit.groups,
                                  .format = args_.format,
                                  .scale = static_cast<char*>(args_.scale) + first * format::bytes(args_.scale_format),
                                  .scale_format = args_.scale_format,
                                  .power_of_two = args_.power_of_two,
                                  .rounding = args_.rounding,
                                  .inv_scale = inv_scales});
  }

  void run_unit(int64_t index) {
    const Unit unit = unit_at(index);
    std::array<int32_t, kUnitCols> amaxes;
    std::array<float, kUnitCols> inv_scales;
    std::fill_n(amaxes.begin(), unit.groups, 0);
    find_amaxes(unit, amaxes.data());
    const int32_t largest = set_scales(unit, amaxes.data(), inv_scales.data());
    amax_.raise(largest);
    over_slices(unit, [&](int64_t row, int64_t col, int64_t rows, int64_t cols) {
      kernels_.encode_groups({.x = x_at(row, col),
                              .x_format = args_.x_format,
                              .rows = rows,
                              .cols = cols,
                              .x_stride = args_.x_stride,
                              .codes = args_.codes + row * args_.codes_stride + col,
                              .format = args_.format,
                              .codes_stride = args_.codes_stride,
                              .inv_scale = inv_scales.data(),
                              .group_cols = group_cols(unit),
                              .prefetch_distance = unit.cols});
      if (errors_.are_wanted()) measure(index, unit, {row, col, rows, cols}, inv_scales.data());
    });
    if (!std::isfinite(std::bit_cast<float>(largest))) poison(unit, amaxes.data());
  }

  struct Slice {
    int64_t row, col, rows, cols;
  };

  // The sums of a slice are in units of its largest scale. A block that is NaN makes them NaN in any.
  void measure(int64_t index, const Unit& unit, const Slice& slice, const float* inv_scales) {
    float least = std::numeric_limits<float>::infinity();
    for (int64_t i = 0; i < unit.groups; ++i) {
      if (inv_scales[i] > 0) least = std::min(least, inv_scales[i]);
    }
    std::array<float, kUnitCols> weights;
    for (int64_t i = 0; i < unit.groups; ++i) {
      weights[static_cast<size_t>(i)] = inv_scales[i] > 0 ? least / inv_scales[i] : 1.0f;
    }
    const int64_t across = runtime::divide_up(unit.cols, unit.slice_cols);
    const int64_t number =
        (slice.row - unit.row) / slice_rows(unit) * across + (slice.col - unit.col) / unit.slice_cols;
    ErrorSums& sums = errors_.of(index * slices_ + number, slice.col);
    sums.unit = std::isfinite(least) ? 1.0 / double{least} : 1.0;
    kernels_.error({.x = x_at(slice.row, slice.col),
                    .x_format = args_.x_format,
                    .rows = slice.rows,
                    .cols = slice.cols,
                    .x_stride = args_.x_stride,
                    .codes = args_.codes + slice.row * args_.codes_stride + slice.col,
                    .format = args_.format,
                    .codes_stride = args_.codes_stride,
                    .inv_scale = inv_scales,
                    .weight = weights.data(),
                    .group_cols = group_cols(unit),
                    .row = slice.row,
                    .sums = &sums});
  }

  // Blocks that hold NaN or Inf: every code NaN, of one sign whatever the inputs were.
  void poison(const Unit& unit, const int32_t* amaxes) const {
    for (int64_t group = 0; group < unit.groups; ++group) {
      if (std::isfinite(std::bit_cast<float>(amaxes[group]))) continue;
      const int64_t begin = group * block_cols_, end = std::min(begin + block_cols_, unit.cols);
      for (int64_t row = unit.row; row < unit.row + unit.rows; ++row) {
        std::memset(args_.codes + row * args_.codes_stride + unit.col + begin, kNanCode,
                    static_cast<size_t>(end - begin));
      }
    }
  }

  const QuantizeBlocks& args_;
  const QuantizeLoops& kernels_;
  int64_t block_rows_, block_cols_;
  int64_t unit_cols_, row_units_, col_units_;
  SharedAmax amax_;
  int64_t slices_ = 0;  // of a unit, at most
  TileErrors errors_{0};
};

}  // namespace

void quantize_blocks(const QuantizeBlocks& args) { BlockQuantizer(args).run(); }

}  // namespace plimsoll::kernels
