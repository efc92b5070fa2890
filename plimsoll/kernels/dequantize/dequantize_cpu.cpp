#include <algorithm>
#include <array>
#include <cstdint>

#include "plimsoll/kernels/dequantize/dequantize.h"
#include "plimsoll/kernels/dequantize/dequantize_loops.h"
#include "plimsoll/runtime/pick.h"
#include "plimsoll/runtime/threads.h"

namespace plimsoll::kernels {
namespace {

constexpr int64_t kRunCols =
    2048;  // blocks of a run at most, and columns of a piece of a row unless one block is wider

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

// Whole rows where there are many, as memory is read best; of few rows pieces that threads can share.
int64_t columns_of_run(const Dequantize& args) {
  constexpr int64_t kManyRows = 64;
  const int64_t block_cols = args.scale.block_cols;
  if (args.rows >= kManyRows) return block_cols > 0 ? kRunCols * block_cols : std::max<int64_t>(args.cols, 1);
  return block_cols > 0 ? std::max<int64_t>(kRunCols / block_cols, 1) * block_cols : kRunCols;
}

// The scales of the blocks in one run of columns, kept while the row of blocks stays the same.
class RunScales {
 public:
  RunScales(const ScaleView& view, int64_t col, int64_t cols)
      : view_(view),
        first_block_(view.block_cols > 0 ? col / view.block_cols : 0),
        blocks_(view.block_cols > 0 ? (cols + view.block_cols - 1) / view.block_cols : 1) {}

  const float* of_row(int64_t row) {
    const int64_t block_row = view_.block_rows > 0 ? row / view_.block_rows : 0;
    if (block_row != block_row_) {
      block_row_ = block_row;
      for (int64_t block = 0; block < blocks_; ++block) {
        values_[static_cast<size_t>(block)] = scale_in_memory(view_, block_row, first_block_ + block);
      }
    }
    return values_.data();
  }

 private:
  const ScaleView& view_;
  int64_t first_block_, blocks_;
  int64_t block_row_ = -1;
  std::array<float, kRunCols> values_;
};

float tensor_scale(const ScaleView& scale, int64_t row) {
  return scale.tensor == nullptr ? 1.0f : scale.tensor[row * scale.tensor_row_stride];
}

}  // namespace

void dequantize(const Dequantize& original) {
  const Dequantize args = flattened(original);
  const int64_t codes_a_byte = args.format == format::Format::kE2m1 ? 2 : 1;
  const DequantizeLoops& loops = runtime::pick(kDequantizeLoopsPortable, kDequantizeLoopsAvx2, kDequantizeLoopsAvx512);
  const int64_t block_cols = args.scale.block_cols;
  const int64_t run_cols = columns_of_run(args);
  const int64_t across = (args.cols + run_cols - 1) / run_cols;
  constexpr int64_t kWorthWaking = 32768;  // elements: about ten microseconds
  const int64_t grain = kWorthWaking / std::max<int64_t>(std::min(args.cols, run_cols), 1);
  // Unit i is row i % rows of the run of columns i / rows.
  runtime::parallel_for(args.rows * across, grain, [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t col = begin / args.rows * run_cols, cols = std::min(run_cols, args.cols - col);
      const int64_t first_row = begin % args.rows, last_row = std::min(args.rows, first_row + end - begin);
      RunScales scales(args.scale, col, cols);
      for (int64_t row = first_row; row < last_row; ++row) {
        loops.run({.codes = args.codes + (row * args.codes_stride + col) / codes_a_byte,
                   .format = args.format,
                   .count = cols,
                   .scale = scales.of_row(row),
                   .group_count = block_cols > 0 ? block_cols : std::max<int64_t>(cols, 2),
                   .tensor_scale = tensor_scale(args.scale, row),
                   .output = static_cast<char*>(args.output) +
                             (row * args.output_stride + col) * format::bytes(args.output_format),
                   .output_format = args.output_format});
      }
      begin += last_row - first_row;
    }
  });
}

}  // namespace plimsoll::kernels
