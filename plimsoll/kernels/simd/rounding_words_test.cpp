#include "plimsoll/runtime/rounding_words.h"

#include <gtest/gtest.h>

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

TEST(SimdPack, EveryByteComesBackInItsPlace) {
  for (const SimdProbe* probe : present_probes()) {
    for (int first = -128; first <= 96; first += 32) {
      int32_t x[32], back[16];
      int8_t packed[32];
      uint8_t lower_bytes[32];
      for (int i = 0; i < 32; ++i) x[i] = first + i;
      probe->pack(x, packed, lower_bytes);
      for (int i = 0; i < 32; ++i) {
        EXPECT_EQ(packed[i], x[i]);
        EXPECT_EQ(lower_bytes[i], static_cast<uint8_t>(x[i]));
      }
      probe->unpack(packed + 16, back);
      for (int i = 0; i < 16; ++i) EXPECT_EQ(back[i], x[16 + i]);
    }
  }
}

}  // namespace
}  // namespace plimsoll::kernels
