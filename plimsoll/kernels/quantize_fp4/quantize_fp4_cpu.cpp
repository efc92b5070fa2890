// Tiles that any threads may run in any order. Where codes of both directions are wanted, a tile is read from memory once.
#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>

#include "plimsoll/kernels/quantize_fp4/quantize_fp4.h"
#include "plimsoll/kernels/quantize_fp4/quantize_fp4_loops.h"
#include "plimsoll/kernels/shared_amax.h"
#include "plimsoll/runtime/divide_up.h"
#include "plimsoll/runtime/philox.h"
#include "plimsoll/runtime/pick.h"
#include "plimsoll/runtime/threads.h"

namespace plimsoll::kernels {
namespace {

constexpr int64_t kWorthWaking = 16384;  // elements: about ten microseconds

const QuantizeFp4Loops& loops() {
  return runtime::pick(kQuantizeFp4LoopsPortable, kQuantizeFp4LoopsAvx2, kQuantizeFp4LoopsAvx512);
}

using Signs = std::array<float, kFp4LargestRotation>;

Signs signs_of(const Fp4Rotation& rotation) {
  Signs signs;
  if (rotation.size == 0) return signs.fill(1.0f), signs;
  const runtime::Philox words{rotation.seed, rotation.step};
  const float magnitude = static_cast<float>(1.0 / std::sqrt(static_cast<double>(rotation.size)));
  for (size_t i = 0; i < signs.size(); ++i) {
    const size_t place = i % static_cast<size_t>(rotation.size);
    signs[i] = (words.word(place / 32) >> (place % 32) & 1u) != 0 ? -magnitude : magnitude;
  }
  return signs;
}

// The matrix, in tiles.
struct Matrix {
  const void* x;
  format::Format x_format;
  int64_t rows, cols, x_stride;
};

struct TileSize {
  int64_t rows, cols;
};

// Place of a tile in the matrix, and its number.
struct TilePlace {
  int64_t row, col, rows, cols, number;
};

// The elements of a tile, without codes, scales and random numbers.
Fp4Tile tile_at(const Matrix& x, const TilePlace& place, format::Fp4Scaling scaling) {
  return {.x = static_cast<const char*>(x.x) + (place.row * x.x_stride + place.col) * format::bytes(x.x_format),
          .x_format = x.x_format,
          .rows = place.rows,
          .cols = place.cols,
          .x_stride = x.x_stride,
          .row = place.row,
          .col = place.col,
          .scaling = scaling};
}

struct Sums {
  SharedAmax amax;
  std::atomic<int64_t> non_finite_blocks = 0;
  void add(const Fp4TileResult& result) {
    amax.raise(result.amax);
    if (result.non_finite_blocks != 0) non_finite_blocks += result.non_finite_blocks;
  }
};

int64_t tiles(const Matrix& x, TileSize size) {
  return runtime::divide_up(x.cols, size.cols) * runtime::divide_up(x.rows, size.rows);
}

// Memory for a statistic of all tiles, where one is wanted.
TileErrors tile_errors(const Matrix& x, TileSize size, const QuantizeStatistic* statistic) {
  return TileErrors(statistic == nullptr ? 0 : tiles(x, size));
}

// Calls pass(TilePlace) on tiles.
template <class Pass>
void over_tiles(const Matrix& x, TileSize size, Pass pass) {
  const int64_t across = runtime::divide_up(x.cols, size.cols);
  const int64_t tile = std::max<int64_t>(std::min(size.rows, x.rows) * std::min(size.cols, x.cols), 1);
  runtime::parallel_for(tiles(x, size), kWorthWaking / tile + 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i / across * size.rows, col = i % across * size.cols;
      pass(TilePlace{row, col, std::min(size.rows, x.rows - row), std::min(size.cols, x.cols - col), i});
    }
  });
}

// One direction: what a tile of it is told.
class Direction {
 public:
  enum class Along { kRows, kColumns };

  Direction(const Matrix& x, format::Fp4Scaling scaling, const Fp4Lines& lines, Along along)
      : x_(x), scaling_(scaling), lines_(lines), along_(along), signs_(signs_of(lines.rotation)) {}

  bool wanted() const { return lines_.codes != nullptr; }

  // Whether the scale is made from an amax that nobody has found yet.
  bool wants_amax() const { return wanted() && format::is_nvfp4(scaling_) && lines_.tensor_amax == nullptr; }

  // FP32 bits.
  int32_t amax(const TilePlace& at) const {
    const Fp4Tile tile = tile_of(at);
    return along_ == Along::kRows ? loops_.row_amax(tile) : loops_.column_amax(tile);
  }

  // found: the amax, where it is wanted.
  void set_scale(float found) {
    if (!wanted()) return;
    if (format::is_nvfp4(scaling_)) {
      encode_scale_ = format::Nvfp4::encode_scale(wants_amax() ? found : *lines_.tensor_amax, scaling_);
    }
    if (lines_.tensor_scale != nullptr) *lines_.tensor_scale = 1.0f / encode_scale_;
  }

  // errors: nullptr where nobody wants them.
  Fp4TileResult run(const TilePlace& at, ErrorSums* errors) const {
    const bool by_row = along_ == Along::kRows;
    const int64_t line = by_row ? at.row : at.col, place = by_row ? at.col : at.row;
    const bool corrects = scaling_ == format::Fp4Scaling::kMsEden;
    const int64_t drawn = corrects ? runtime::divide_up(x_.cols, 16) : x_.cols;  // numbers of a row
    Fp4Tile tile = tile_of(at);
    tile.encode_scale = encode_scale_;
    tile.codes = lines_.codes + line * lines_.codes_stride + place / 2;
    tile.codes_stride = lines_.codes_stride;
    tile.scale = lines_.scale + line * lines_.scale_stride + place / format::fp4_block(scaling_);
    tile.scale_stride = lines_.scale_stride;
    tile.stochastic = lines_.noise.stochastic && !corrects;
    tile.stochastic_scales = lines_.noise.stochastic && corrects;
    tile.seed = lines_.noise.seed;
    tile.step = lines_.noise.step;
    tile.words = by_row ? 16 * runtime::divide_up(drawn, 32) : 32 * runtime::divide_up(x_.cols, 32);
    const Fp4TileResult result = by_row ? loops_.rows(tile) : loops_.columns(tile);
    if (errors != nullptr) by_row ? loops_.row_error(tile, 1, *errors) : loops_.column_error(tile, *errors);
    return result;
  }

 private:
  Fp4Tile tile_of(const TilePlace& at) const {
    Fp4Tile tile = tile_at(x_, at, scaling_);
    tile.rotation = lines_.rotation.size;
    tile.signs = signs_.data();
    return tile;
  }

  const Matrix& x_;
  const format::Fp4Scaling scaling_;
  const Fp4Lines& lines_;
  const Along along_;
  const Signs signs_;
  const QuantizeFp4Loops& loops_ = loops();
  float encode_scale_ = 1.0f;
};

// Scales of the directions that are wanted; x is read from memory once for the maxima that they need.
void set_scales(const Matrix& x, Direction& by_row, Direction& by_column) {
  const bool row_wants = by_row.wants_amax(), column_wants = by_column.wants_amax();
  SharedAmax of_rows, of_columns;
  if (row_wants || column_wants) {
    over_tiles(x, {kFp4GroupRows, kFp4Chunk}, [&](const TilePlace& place) {
      if (row_wants) of_rows.raise(by_row.amax(place));
      if (column_wants) of_columns.raise(by_column.amax(place));
    });
  }
  by_row.set_scale(of_rows.value());
  by_column.set_scale(of_columns.value());
}

// 64 K elements; whole rows where columns are not wanted, as memory is read best.
TileSize tile_size(const Matrix& x, bool by_column) {
  if (by_column) return {kFp4GroupRows, kFp4Chunk};
  constexpr int64_t kElements = 65536;
  const int64_t rows = std::clamp<int64_t>(kElements / std::max<int64_t>(x.cols, 1), 1, 64);
  return {rows, std::max<int64_t>(kElements / kFp4Chunk, 1) * kFp4Chunk};
}

}  // namespace

void quantize_fp4(const QuantizeFp4& args) {
  const Matrix x = {args.x, args.x_format, args.rows, args.cols, args.x_stride};
  Direction by_row(x, args.scaling, args.by_row, Direction::Along::kRows);
  Direction by_column(x, args.scaling, args.by_column, Direction::Along::kColumns);
  set_scales(x, by_row, by_column);
  Sums row_sums, column_sums;
  const TileSize size = tile_size(x, by_column.wanted());
  TileErrors row_errors = tile_errors(x, size, args.by_row.statistic);
  TileErrors column_errors = tile_errors(x, size, args.by_column.statistic);
  over_tiles(x, size, [&](const TilePlace& place) {
    const auto errors = [&](TileErrors& all) { return all.are_wanted() ? &all.of(place.number, place.col) : nullptr; };
    if (by_row.wanted()) row_sums.add(by_row.run(place, errors(row_errors)));
    if (by_column.wanted()) column_sums.add(by_column.run(place, errors(column_errors)));
  });
  if (args.by_row.statistic != nullptr) *args.by_row.statistic = row_errors.joined();
  if (args.by_column.statistic != nullptr) *args.by_column.statistic = column_errors.joined();
  if (by_row.wanted()) row_sums.amax.store(args.by_row.amax);
  if (by_column.wanted()) column_sums.amax.store(args.by_column.amax);
  if (args.non_finite_blocks != nullptr) {
    *args.non_finite_blocks = row_sums.non_finite_blocks + column_sums.non_finite_blocks;
  }
}

void quantize_fp4_squares(const QuantizeFp4Squares& args) {
  const Matrix x = {args.x, args.x_format, args.rows, args.cols, args.x_stride};
  const QuantizeFp4Loops& kernels = loops();
  const Signs signs = signs_of({});
  const TileSize size = {kFp4GroupRows, kFp4Chunk};
  const auto scaled_tile = [&](const TilePlace& place, float encode_scale) {
    Fp4Tile tile = tile_at(x, place, args.scaling);
    tile.encode_scale = encode_scale;
    tile.scale = args.scale + place.row / 16 * args.scale_stride + place.col / 16;
    tile.scale_stride = args.scale_stride;
    tile.signs = signs.data();
    return tile;
  };
  float amax = 0;
  if (args.tensor_amax != nullptr) {
    amax = *args.tensor_amax;
  } else {
    SharedAmax found;
    over_tiles(x, size, [&](const TilePlace& place) { found.raise(kernels.row_amax(scaled_tile(place, 1.0f))); });
    amax = found.value();
  }
  const float encode_scale = format::Nvfp4::encode_scale(amax, args.scaling);
  if (args.tensor_scale != nullptr) *args.tensor_scale = 1.0f / encode_scale;
  Sums sums;
  TileErrors errors = tile_errors(x, size, args.statistic);
  over_tiles(x, size, [&](const TilePlace& place) {
    Fp4Tile tile = scaled_tile(place, encode_scale);
    tile.codes = args.codes + place.row * args.codes_stride + place.col / 2;
    tile.codes_stride = args.codes_stride;
    sums.add(kernels.squares(tile));
    if (errors.are_wanted()) kernels.row_error(tile, 16, errors.of(place.number, place.col));
    if (args.transposed == nullptr) return;
    tile.codes = args.transposed + place.col * args.transposed_stride + place.row / 2;
    tile.codes_stride = args.transposed_stride;
    kernels.squares_transposed(tile);
  });
  sums.amax.store(args.amax);
  if (args.non_finite_blocks != nullptr) *args.non_finite_blocks = sums.non_finite_blocks;
  if (args.statistic != nullptr) *args.statistic = errors.joined();
}

}  // namespace plimsoll::kernels
