#include "plimsoll/runtime/detection.h"

#include <sys/syscall.h>
#include <unistd.h>

#include "plimsoll/runtime/cpuid.h"
#include "plimsoll/runtime/tile_check.h"

namespace plimsoll::runtime {
namespace {

// Register state that the operating system saves: XCR0 (Intel SDM vol. 1, 13.3).
unsigned long long enabled_state() {
  if (!bit(Cpuid(1, 0).ecx, 27)) return 0;  // OSXSAVE
  unsigned low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<unsigned long long>(high) << 32) | low;
}

// Linux hands out the tile-data state (XSAVE component 18) per process on request.
bool request_amx_permission() {
  constexpr long kArchReqXcompPerm = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kArchReqXcompPerm, kTileData) == 0;
}

// No machine at hand had tiles when their kernels were written, so that each processor is tried before it is trusted.
Detection detect_amx(bool saved) {
  if (!saved || !request_amx_permission()) return {Isa::kAvx512Bf16, "the operating system gives no tile registers"};
  if (!tiles_multiply_as_defined()) return {Isa::kAvx512Bf16, "a product of tiles differs from its definition"};
  return {Isa::kAmx};
}

}  // namespace

Detection detect() {
  const unsigned long long state = enabled_state();
  const Cpuid one(1, 0), seven(7, 0), seven_one(7, 1);
  const bool ymm = (state & 0x6) == 0x6, zmm = (state & 0xe6) == 0xe6, tiles = (state & 0x60000) == 0x60000;
  if (!(ymm && bit(one.ecx, 12) && bit(one.ecx, 29) && bit(seven.ebx, 5))) return {Isa::kPortable};  // FMA, F16C, AVX2
  const bool avx512 = zmm && bit(seven.ebx, 16) && bit(seven.ebx, 17) && bit(seven.ebx, 30) && bit(seven.ebx, 31);
  if (!avx512) return {Isa::kAvx2};
  if (!(bit(seven.ecx, 1) && bit(seven_one.eax, 5))) return {Isa::kAvx512};  // VBMI, AVX512_BF16
  const bool amx = bit(seven.edx, 22) && bit(seven.edx, 24);                 // AMX-BF16, AMX-TILE
  return amx ? detect_amx(tiles) : Detection{Isa::kAvx512Bf16};
}

}  // namespace plimsoll::runtime
