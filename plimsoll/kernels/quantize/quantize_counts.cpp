#include "plimsoll/kernels/quantize/quantize_counts.h"

#include <cmath>

#include "plimsoll/format/codec.h"

namespace plimsoll::kernels {
namespace {

float value_at(const EncodeTile& tile, int64_t index) {
  if (tile.x_format == format::Format::kFp32) return static_cast<const float*>(tile.x)[index];
  return format::decode(tile.x_format, static_cast<const uint16_t*>(tile.x)[index]);
}

}  // namespace

QuantizeCounts count_quantized(const EncodeTile& tile) {
  const float largest = format::max_finite(tile.format);
  const uint32_t min_normal = format::encode(tile.format, format::info(tile.format).min_normal);
  const float inv_scale = tile.inv_scale[0];
  QuantizeCounts counts;
  for (int64_t row = 0; row < tile.rows; ++row) {
    for (int64_t col = 0; col < tile.cols; ++col) {
      const float x = value_at(tile, row * tile.x_stride + col);
      const uint32_t magnitude = tile.codes[row * tile.codes_stride + col] & 0x7fu;
      const bool finite = std::isfinite(x);
      counts.non_finite += !finite;
      counts.saturated += finite && std::fabs(x * inv_scale) > largest;
      counts.flushed_to_zero += finite && x != 0 && magnitude == 0;
      counts.subnormal += finite && magnitude != 0 && magnitude < min_normal;
    }
  }
  return counts;
}

}  // namespace plimsoll::kernels
