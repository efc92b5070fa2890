// quantize_tensor as tiles that any threads may run in any order, and sums that join them in one order.
#include <algorithm>

#include "plimsoll/kernels/inv_scale.h"
#include "plimsoll/kernels/quantize/quantize.h"
#include "plimsoll/kernels/quantize/quantize_loops.h"
#include "plimsoll/kernels/row_blocks.h"
#include "plimsoll/kernels/shared_amax.h"
#include "plimsoll/runtime/divide_up.h"
#include "plimsoll/runtime/pick.h"
#include "plimsoll/runtime/scratch.h"
#include "plimsoll/runtime/threads.h"

namespace plimsoll::kernels {
namespace {

constexpr int64_t kWorthWaking = 32768;  // elements that are worth waking a thread for: about ten microseconds

// A tensor without gaps whose rows play no role is one long row.
QuantizeTensor flattened(QuantizeTensor args) {
  const bool has_rows = args.column_sum != nullptr || args.statistic != nullptr;
  if (!has_rows && args.x_stride == args.cols && args.codes_stride == args.cols) {
    args.cols *= args.rows;
    args.rows = std::min<int64_t>(args.rows, 1);
    args.x_stride = args.codes_stride = args.cols;
  }
  return args;
}

struct Tiles {
  explicit Tiles(const QuantizeTensor& args)
      : rows(args.column_sum != nullptr ? kRowBlock : kRowBlock / 8),
        // With kRowBlock: FP32 x fits half of a 256 KB L2.
        cols(args.column_sum != nullptr ? 512 : 8192),
        down(runtime::divide_up(args.rows, rows)),
        across(runtime::divide_up(args.cols, cols)) {}

  int64_t rows, cols;    // of one
  int64_t down, across;  // how many
};

}  // namespace

const QuantizeLoops& quantize_loops() {
  return runtime::pick(kQuantizeLoopsPortable, kQuantizeLoopsAvx2, kQuantizeLoopsAvx512);
}

void quantize_tensor(const QuantizeTensor& given) {
  const QuantizeTensor args = flattened(given);
  const QuantizeLoops& kernels = quantize_loops();
  const Tiles tiles(args);
  float* sums = nullptr;  // [tiles.down, cols]
  if (args.column_sum != nullptr) {
    const size_t bytes = static_cast<size_t>(tiles.down * args.cols) * sizeof(float);
    sums = static_cast<float*>(runtime::scratch(runtime::ScratchSlot::kReduce, bytes));
  }
  constexpr float kOwnUnit = 1;
  const float inv_scale = inv_scale_at(args.scale);
  SharedAmax amax;
  TileErrors errors(args.statistic == nullptr ? 0 : tiles.down * tiles.across);
  const int64_t tile_elements = std::min(args.rows, tiles.rows) * std::min(args.cols, tiles.cols);
  const int64_t grain = kWorthWaking / std::max<int64_t>(tile_elements, 1) + 1;
  runtime::parallel_for(tiles.down * tiles.across, grain, [&](int64_t begin, int64_t end) {
    for (int64_t tile = begin; tile < end; ++tile) {
      const int64_t row = tile / tiles.across * tiles.rows, col = tile % tiles.across * tiles.cols;
      const int64_t rows = std::min(tiles.rows, args.rows - row), cols = std::min(tiles.cols, args.cols - col);
      const auto* x = static_cast<const char*>(args.x) + (row * args.x_stride + col) * format::bytes(args.x_format);
      if (args.codes == nullptr) {
        int32_t amax_bits = 0;
        kernels.amax({x, args.x_format, rows, cols, args.x_stride, std::max<int64_t>(cols, 2), &amax_bits});
        amax.raise(amax_bits);
      } else {
        amax.raise(kernels.encode({.x = x,
                                   .x_format = args.x_format,
                                   .rows = rows,
                                   .cols = cols,
                                   .x_stride = args.x_stride,
                                   .codes = args.codes + row * args.codes_stride + col,
                                   .format = args.format,
                                   .codes_stride = args.codes_stride,
                                   .inv_scale = &inv_scale,
                                   .group_cols = std::max<int64_t>(cols, 2),
                                   .prefetch_distance = 512}));  // the tile to the right, where columns are summed
      }
      if (errors.are_wanted()) {
        kernels.error({.x = x,
                       .x_format = args.x_format,
                       .rows = rows,
                       .cols = cols,
                       .x_stride = args.x_stride,
                       .codes = args.codes + row * args.codes_stride + col,
                       .format = args.format,
                       .codes_stride = args.codes_stride,
                       .inv_scale = &inv_scale,
                       .weight = &kOwnUnit,
                       .group_cols = std::max<int64_t>(cols, 2),
                       .row = row,
                       .sums = &errors.of(tile, col)});
      }
      if (sums != nullptr) {
        kernels.column_sum({x, args.x_format, rows, cols, args.x_stride, sums + row / tiles.rows * args.cols + col});
      }
    }
  });
  if (args.column_sum != nullptr) sum_blocks(sums, tiles.down, args.cols, args.cols, args.column_sum);
  amax.store(args.amax);
  if (args.statistic != nullptr) *args.statistic = errors.joined();
}

}  // namespace plimsoll::kernels
