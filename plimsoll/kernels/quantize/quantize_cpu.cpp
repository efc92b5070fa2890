// The portable tile passes and the choice between ISA files.
#include "plimsoll/runtime/cpu.h"

#define PLIMSOLL_QUANTIZE_TILE kQuantizeTilePortable
#include "plimsoll/kernels/quantize/quantize_tile.inc"

namespace plimsoll::kernels {

const QuantizeTileKernels& quantize_tile_kernels() {
  const runtime::Isa isa = runtime::isa();
  if (isa >= runtime::Isa::kAvx512) return kQuantizeTileAvx512;
  if (isa >= runtime::Isa::kAvx2) return kQuantizeTileAvx2;
  return kQuantizeTilePortable;
}

}  // namespace plimsoll::kernels
