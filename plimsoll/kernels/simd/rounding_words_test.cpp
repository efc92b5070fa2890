#include "plimsoll/runtime/rounding_words.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "plimsoll/kernels/simd/simd_probe.h"
#include "plimsoll/runtime/cpu.h"

namespace plimsoll::kernels {
namespace {

std::vector<const SimdProbe*> present_probes() {
  std::vector<const SimdProbe*> probes{&kSimdProbePortable};
  if (runtime::detected_isa() >= runtime::Isa::kAvx2) probes.push_back(&kSimdProbeAvx2);
  if (runtime::detected_isa() >= runtime::Isa::kAvx512) probes.push_back(&kSimdProbeAvx512);
  return probes;
}

TEST(SimdRoundingWords, AreThoseOfRuntimeOnEveryIsa) {
  const runtime::RoundingWords reference{.seed = 0x0123456789abcdefu, .step = 0xfedcba9876543210u};
  for (const SimdProbe* probe : present_probes()) {
    for (uint64_t upper : {uint64_t{0}, uint64_t{7}}) {
      for (uint32_t lower : {0x0u, 0x10u, 0x7ffffff0u, 0x80000000u, 0xfffffff0u}) {
        uint32_t words[16];
        probe->rounding_words(reference.keys(upper), lower, words);
        for (uint32_t i = 0; i < 16; ++i) ASSERT_EQ(words[i], reference.word((upper << 32) + lower + i)) << lower;
      }
    }
  }
}

TEST(SimdPack, EveryNumberComesBackInItsPlaceAsTheNearestOf8Bits) {
  for (const SimdProbe* probe : present_probes()) {
    for (int first = -512; first <= 448; first += 64) {
      int32_t x[64], back[16];
      int8_t packed[64], upper[64];
      uint8_t unsigned_bytes[64];
      for (int i = 0; i < 64; ++i) x[i] = first + i;
      probe->pack(x, packed, unsigned_bytes, upper);
      for (int i = 0; i < 64; ++i) {
        EXPECT_EQ(packed[i], std::clamp(x[i], -128, 127));
        EXPECT_EQ(unsigned_bytes[i], std::clamp(x[i], 0, 255));
        EXPECT_EQ(upper[i], packed[i]);
      }
      probe->unpack(packed + 16, back);
      for (int i = 0; i < 16; ++i) EXPECT_EQ(back[i], packed[16 + i]);
    }
  }
}

}  // namespace
}  // namespace plimsoll::kernels
