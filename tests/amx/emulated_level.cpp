// In place of plimsoll/runtime/detection.cpp and gemm_test_isas.cpp: a processor with tiles, and nothing else to test.
#include "plimsoll/kernels/gemm/gemm_test_support.h"
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

namespace plimsoll::kernels::testing {

std::vector<runtime::Isa> isas() { return {runtime::Isa::kAmx}; }

}  // namespace plimsoll::kernels::testing
