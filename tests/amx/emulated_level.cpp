// In place of plimsoll/runtime/detection.cpp: a processor with tiles.
#include "plimsoll/runtime/detection.h"
#include "plimsoll/runtime/tile_check.h"
#include "tests/amx/tile_emulator.h"

namespace plimsoll::runtime {

Detection detect() {
  amx::emulate_tiles();
  if (!tiles_multiply_as_defined()) return {Isa::kAvx512Bf16, "a product of tiles differs from its definition"};
  return {Isa::kAmx};
}

}  // namespace plimsoll::runtime
