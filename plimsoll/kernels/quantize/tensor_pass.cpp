#include "plimsoll/kernels/quantize/tensor_pass.h"

#include <algorithm>

#include "plimsoll/kernels/quantize/quantize_counts.h"

namespace plimsoll::kernels {
namespace {

int64_t pieces(int64_t count, int64_t size) { return (count + size - 1) / size; }

// A tensor without gaps whose rows play no role is one long row.
QuantizeTensor flattened(QuantizeTensor args) {
  const bool plain = args.transposed == nullptr && args.column_sum == nullptr && args.codes != nullptr;
  if (plain && args.x_stride == args.cols && args.codes_stride == args.cols) {
    args.cols *= args.rows;
    args.rows = std::min<int64_t>(args.rows, 1);
    args.x_stride = args.codes_stride = args.cols;
  }
  return args;
}

}  // namespace

TensorPass::TensorPass(const QuantizeTensor& args)
    : args_(flattened(args)),
      kernels_(quantize_tile_kernels()),
      transpose_({.element_bytes = 1,
                  .rows = args_.rows,
                  .cols = args_.cols,
                  .output = args_.transposed,
                  .output_stride = args_.transposed_stride}) {
  const bool by_rows = args_.transposed != nullptr || args_.column_sum != nullptr || args_.codes == nullptr;
  tile_rows_ = by_rows ? kTileRows : kTileRows / 8;
  tile_cols_ = by_rows ? kTileCols : kTileCols * 16;
  row_tiles_ = pieces(args_.rows, tile_rows_);
  col_tiles_ = pieces(args_.cols, tile_cols_);
}

int64_t TensorPass::grain() const {
  constexpr int64_t kWorthWaking = 32768;  // elements: about ten microseconds
  const int64_t tile = std::min(args_.rows, tile_rows_) * std::min(args_.cols, tile_cols_);
  return kWorthWaking / std::max<int64_t>(tile, 1) + 1;
}

TileRegion TensorPass::region(int64_t tile) const {
  const int64_t row = tile / col_tiles_ * tile_rows_, col = tile % col_tiles_ * tile_cols_;
  return {row, col, std::min(tile_rows_, args_.rows - row), std::min(tile_cols_, args_.cols - col)};
}

TileInput TensorPass::input(const TileRegion& region) const {
  const int64_t offset = (region.row * args_.x_stride + region.col) * format::bytes(args_.x_format);
  return {static_cast<const char*>(args_.x) + offset, args_.x_format, args_.x_stride};
}

void TensorPass::run(const TileRegion& region, const TileInput& input) {
  alignas(64) uint8_t buffer[kTileRows * kTileCols];  // for codes that are wanted transposed only
  const bool keeps_codes = args_.codes != nullptr;
  // Fetched ahead: the next tile, which lies to the right.
  const EncodeTile tile = {.x = input.x,
                           .x_format = input.format,
                           .rows = region.rows,
                           .cols = region.cols,
                           .x_stride = input.stride,
                           .codes = keeps_codes ? args_.codes + region.row * args_.codes_stride + region.col : buffer,
                           .format = args_.format,
                           .codes_stride = keeps_codes ? args_.codes_stride : kTileCols,
                           .inv_scale = &args_.inv_scale,
                           .group_cols = std::max<int64_t>(region.cols, 2),
                           .overflow = args_.overflow,
                           .prefetch_distance = kTileCols};
  if (!keeps_codes && args_.transposed == nullptr && args_.counts == nullptr) {  // sums alone
    int32_t amax_bits = 0;
    kernels_.amax({tile.x, tile.x_format, tile.rows, tile.cols, tile.x_stride, tile.group_cols, &amax_bits});
    amax_.raise(amax_bits);
  } else if (args_.random != nullptr) {
    const auto first = static_cast<uint64_t>(region.row * args_.cols + region.col);
    const RandomWords words = {args_.random->seed, args_.random->step, first, static_cast<uint64_t>(args_.cols)};
    amax_.raise(kernels_.encode_stochastic(tile, words));
  } else {
    amax_.raise(kernels_.encode(tile));
  }
  if (args_.transposed != nullptr) {
    transpose_.run({.x = tile.codes,
                    .element_bytes = 1,
                    .rows = tile.rows,
                    .cols = tile.cols,
                    .x_stride = tile.codes_stride,
                    .output = args_.transposed + region.col * args_.transposed_stride + region.row,
                    .output_stride = args_.transposed_stride},
                   0);
  }
  if (args_.column_sum != nullptr) {
    float* sum = partial_sums_ + region.row / tile_rows_ * args_.cols + region.col;
    kernels_.column_sum({input.x, input.format, region.rows, region.cols, input.stride, sum});
  }
  if (args_.counts != nullptr) add_counts(count_quantized(tile));
}

void TensorPass::add_counts(const QuantizeCounts& counts) {
  counts_[0] += counts.saturated;
  counts_[1] += counts.flushed_to_zero;
  counts_[2] += counts.subnormal;
  counts_[3] += counts.non_finite;
}

float TensorPass::finish() {
  if (args_.column_sum != nullptr) sum_blocks(partial_sums_, row_tiles_, args_.cols, args_.cols, args_.column_sum);
  if (args_.counts != nullptr) *args_.counts = {counts_[0], counts_[1], counts_[2], counts_[3]};
  return amax_.value();
}

}  // namespace plimsoll::kernels
