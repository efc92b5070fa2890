#include "plimsoll/runtime/philox.h"

#include <gtest/gtest.h>

namespace plimsoll::runtime {
namespace {

// Known answers published with the reference implementation (Random123, kat_vectors, philox4x32 10).
TEST(Philox, MatchesTheKnownAnswers) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}), (PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}),
            (PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, WordsAreIndexedByElement) {
  const Philox stream{.seed = 5, .step = 9};
  for (uint64_t i = 0; i < 64; ++i) EXPECT_EQ(stream.word(i), stream.words(i / 4)[i % 4]);
  EXPECT_NE(stream.word(0), (Philox{.seed = 5, .step = 10}).word(0));
}

}  // namespace
}  // namespace plimsoll::runtime
