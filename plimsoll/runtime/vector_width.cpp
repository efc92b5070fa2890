#include "plimsoll/runtime/vector_width.h"

#include "plimsoll/runtime/cpuid.h"

namespace plimsoll::runtime {
namespace {

bool is_amd() {
  const Cpuid zero(0, 0);
  return zero.ebx == signature_AMD_ebx && zero.edx == signature_AMD_edx && zero.ecx == signature_AMD_ecx;
}

}  // namespace

bool splits_512_bits() {
  constexpr unsigned kZen3And4 = 0x19;
  const unsigned word = Cpuid(1, 0).eax, family = ((word >> 8) & 0xf) + ((word >> 20) & 0xff);
  const bool has_avx512 = __get_cpuid_max(0, nullptr) >= 7 && bit(Cpuid(7, 0).ebx, 16);
  return is_amd() && family == kZen3And4 && has_avx512;
}

}  // namespace plimsoll::runtime
