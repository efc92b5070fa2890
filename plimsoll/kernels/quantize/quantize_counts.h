// What quantization did to the elements of a tile: see QuantizeCounts.
#pragma once

#include <cstdint>

#include "plimsoll/kernels/quantize/quantize.h"
#include "plimsoll/kernels/quantize/quantize_tile.h"

namespace plimsoll::kernels {

// The tile as it was encoded, with one scale: group_cols >= cols.
QuantizeCounts count_quantized(const EncodeTile& tile);

}  // namespace plimsoll::kernels
