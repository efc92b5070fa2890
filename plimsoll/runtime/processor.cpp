#include "plimsoll/runtime/processor.h"

#include "plimsoll/runtime/cpuid.h"

namespace plimsoll::runtime {
namespace {

Processor::Vendor vendor() {
  const Cpuid zero(0, 0);
  if (zero.ebx == signature_AMD_ebx && zero.edx == signature_AMD_edx && zero.ecx == signature_AMD_ecx) {
    return Processor::Vendor::kAmd;
  }
  if (zero.ebx == signature_INTEL_ebx && zero.edx == signature_INTEL_edx && zero.ecx == signature_INTEL_ecx) {
    return Processor::Vendor::kIntel;
  }
  return Processor::Vendor::kOther;
}

}  // namespace

Processor processor() {
  const unsigned word = Cpuid(1, 0).eax;
  const unsigned family = (word >> 8) & 0xf, model = (word >> 4) & 0xf, more_family = (word >> 20) & 0xff,
                 more_model = (word >> 16) & 0xf;
  const bool has_more_model = family == 6 || family == 15;
  return {.vendor = vendor(),
          .family = static_cast<int>(family == 15 ? family + more_family : family),
          .model = static_cast<int>(has_more_model ? model + (more_model << 4) : model)};
}

}  // namespace plimsoll::runtime
