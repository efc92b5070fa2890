#include "plimsoll/runtime/philox.h"

#include <gtest/gtest.h>

#include "plimsoll/kernels/simd/simd_probe.h"
#include "plimsoll/runtime/cpu.h"

namespace plimsoll::kernels {
namespace {

TEST(SimdPhilox, IsRuntimePhiloxOnEveryIsa) {
  const runtime::Philox reference{.seed = 0x0123456789abcdefu, .step = 0xfedcba9876543210u};
  const auto check = [&](const SimdProbe& probe) {
    // Around a carry into the upper half of the counter, and far from one.
    for (uint64_t block : {0x0u, 0x1u, 0x12345u, 0xfffffff0u, 0xfffffff1u, 0xffffffffu}) {
      for (uint64_t upper : {uint64_t{0}, uint64_t{7} << 32}) {
        uint32_t words[64];
        probe.philox(reference.seed, reference.step, upper + block, words);
        for (uint64_t i = 0; i < 64; ++i)
          ASSERT_EQ(words[i], reference.word(4 * (upper + block) + i)) << block << " " << i;
      }
    }
  };
  check(kSimdProbePortable);
  if (runtime::detected_isa() >= runtime::Isa::kAvx2) check(kSimdProbeAvx2);
  if (runtime::detected_isa() >= runtime::Isa::kAvx512) check(kSimdProbeAvx512);
}

}  // namespace
}  // namespace plimsoll::kernels
