// Instructions that this process may use. Each level holds all below it; kernels pick the best file that they have at
// or below isa().
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace plimsoll::runtime {

enum class Isa : int {
  kPortable = 0,    // what the compiler makes of plain C++
  kAvx2 = 1,        // AVX2, FMA, F16C
  kAvx512 = 2,      // AVX-512 F, BW, DQ, VL
  kAvx512Bf16 = 3,  // and VBMI, BF16
  kAmx = 4,         // and AMX TILE, BF16, with the kernel's permission for tile data
};

std::string_view name(Isa isa);
std::optional<Isa> parse_isa(std::string_view name);

// The best level that the processor and the operating system allow. Where there are tiles, the first call asks for
// permission to use them and tries one product.
Isa detected_isa();

// Reason that a processor with AMX is not given kAmx; empty elsewhere.
std::string_view amx_refusal();

// The level in force on this thread: detected_isa(), lowered by the environment variable PLIMSOLL_ISA (read once) and
// by ScopedIsa. A PLIMSOLL_ISA that names no level, or one above the processor's, ends the process with one line and
// exit code 2.
Isa isa();

// True if nothing (environment or scope) has asked for a level by name.
bool isa_is_automatic();

// The level for matrix products that have a kernel of tiles.
Isa matmul_isa();

// The level for those that have none: at most kAvx512Bf16, and where the level was not asked for by name, kAvx512 on a
// processor whose VDPBF16PS does no more multiply-adds per cycle than its FP32 FMA (Intel: half): converting to FP32 is
// exact and faster.
Isa vector_matmul_isa();

// Vendor and model for reports, for example "AMD EPYC 9B45".
std::string cpu_name();

// Lowers isa() for the calling thread until destruction; kernels choose their file on the calling thread. Never raises
// it.
class ScopedIsa {
 public:
  explicit ScopedIsa(Isa level);
  ~ScopedIsa();
  ScopedIsa(const ScopedIsa&) = delete;
  ScopedIsa& operator=(const ScopedIsa&) = delete;

 private:
  int previous_;
};

}  // namespace plimsoll::runtime
