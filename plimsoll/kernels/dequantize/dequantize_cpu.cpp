#include <algorithm>
#include <array>
#include <cstdint>

#include "plimsoll/format/e8m0.h"
#include "plimsoll/kernels/dequantize/dequantize.h"
#include "plimsoll/kernels/dequantize/dequantize_run.inc"
#include "plimsoll/runtime/cpu.h"
#include "plimsoll/runtime/threads.h"

namespace plimsoll::kernels {
namespace {

constexpr int64_t kRunCols = 2048;

auto choose_run() {
  const runtime::Isa isa = runtime::isa();
  if (isa >= runtime::Isa::kAvx512) return dequantize_run_avx512;
  if (isa >= runtime::Isa::kAvx2) return dequantize_run_avx2;
  return dequantize_any;
}

// A matrix without gaps under one scale is one long row.
Dequantize flattened(Dequantize args) {
  const bool one_scale = args.scale.data == nullptr || (args.scale.block_rows == 0 && args.scale.block_cols == 0);
  if (one_scale && args.codes_stride == args.cols && args.output_stride == args.cols) {
    args.cols *= args.rows;
    args.rows = std::min<int64_t>(args.rows, 1);
    args.codes_stride = args.output_stride = args.cols;
  }
  return args;
}

// The scales of one run of columns, kept while the row of blocks stays the same.
class RunScales {
 public:
  RunScales(const ScaleView& view, int64_t col, int64_t cols) : view_(view), col_(col), cols_(cols) {}

  // 0: every column has the same scale.
  int64_t step() const {
    return view_.data != nullptr && view_.block_cols > 0 && view_.block_cols < col_ + cols_ ? 1 : 0;
  }

  const float* of_row(int64_t row) {
    const int64_t block_row = view_.block_rows > 0 ? row / view_.block_rows : 0;
    if (block_row != block_row_) fill(block_row);
    return values_.data();
  }

 private:
  void fill(int64_t block_row) {
    block_row_ = block_row;
    if (step() == 0) {
      std::fill_n(values_.begin(), 16, scale(block_row, 0));
      return;
    }
    for (int64_t col = col_; col < col_ + cols_;) {
      const int64_t block = col / view_.block_cols;
      const int64_t end = std::min((block + 1) * view_.block_cols, col_ + cols_);
      std::fill(values_.begin() + (col - col_), values_.begin() + (end - col_), scale(block_row, block));
      col = end;
    }
  }
  float scale(int64_t block_row, int64_t block_col) const {
    if (view_.data == nullptr) return 1.0f;
    const int64_t index = block_row * view_.row_stride + block_col * view_.col_stride;
    if (view_.format == Format::kE8m0) return format::E8m0::decode(static_cast<const uint8_t*>(view_.data)[index]);
    return static_cast<const float*>(view_.data)[index];
  }

  const ScaleView& view_;
  int64_t col_, cols_;
  int64_t block_row_ = -1;
  std::array<float, kRunCols> values_;
};

}  // namespace

void dequantize(const Dequantize& original) {
  const Dequantize args = flattened(original);
  const auto run = choose_run();
  const int64_t across = (args.cols + kRunCols - 1) / kRunCols;
  const int64_t grain =
      32768 / std::max<int64_t>(std::min(args.cols, kRunCols), 1);  // elements: about ten microseconds
  // Unit i is row i % rows of the run of columns i / rows.
  runtime::parallel_for(args.rows * across, grain, [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t col = begin / args.rows * kRunCols, cols = std::min(kRunCols, args.cols - col);
      const int64_t first_row = begin % args.rows, last_row = std::min(args.rows, first_row + end - begin);
      RunScales scales(args.scale, col, cols);
      for (int64_t row = first_row; row < last_row; ++row) {
        run({.codes = args.codes + row * args.codes_stride + col,
             .format = args.format,
             .count = cols,
             .scale = scales.of_row(row),
             .scale_step = scales.step(),
             .output =
                 static_cast<char*>(args.output) + (row * args.output_stride + col) * format::bytes(args.output_format),
             .output_format = args.output_format});
      }
      begin += last_row - first_row;
    }
  });
}

}  // namespace plimsoll::kernels
