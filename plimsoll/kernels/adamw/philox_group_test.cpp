#include "plimsoll/kernels/adamw/philox_group.h"

#include <gtest/gtest.h>

#include "plimsoll/runtime/philox.h"

namespace plimsoll::kernels {
namespace {

TEST(PhiloxGroup, IsRuntimePhilox) {
  for (uint64_t first : {uint64_t{0}, uint64_t{64}, uint64_t{4} << 32, (uint64_t{4} << 32) - 64}) {
    const runtime::Philox reference{.seed = 0x0123456789abcdefu, .step = 0xfedcba9876543210u};
    uint32_t words[64];
    philox_group(reference.seed, reference.step, first, words);
    for (uint64_t i = 0; i < 64; ++i) ASSERT_EQ(words[i], reference.word(first + i)) << first + i;
  }
}

}  // namespace
}  // namespace plimsoll::kernels
