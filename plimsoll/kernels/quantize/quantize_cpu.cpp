// The portable tile passes and the choice between ISA files.
#include "plimsoll/runtime/pick.h"

#define PLIMSOLL_QUANTIZE_TILE kQuantizeTilePortable
#include "plimsoll/kernels/quantize/quantize_tile.inc"

namespace plimsoll::kernels {

const QuantizeTileKernels& quantize_tile_kernels() {
  return runtime::pick(kQuantizeTilePortable, kQuantizeTileAvx2, kQuantizeTileAvx512);
}

}  // namespace plimsoll::kernels
