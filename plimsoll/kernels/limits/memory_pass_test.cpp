#include "plimsoll/kernels/limits/memory_pass.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "plimsoll/kernels/testing.h"

namespace plimsoll::kernels {
namespace {

// Words of 64 bytes, none up to more than the unrolled loops take at once, and a word beyond that must stay.
TEST(MemoryPass, TouchesTheWordsItIsGivenAndNoOthers) {
  for (runtime::Isa isa : testing::isas_present()) {
    const runtime::ScopedIsa scope(isa);
    for (size_t words : {0u, 1u, 3u, 4u, 5u, 9u}) {
      std::vector<float> from(16 * (words + 1));
      std::iota(from.begin(), from.end(), 1.0f);
      std::vector<float> to(from.size(), -1.0f), expected = to;
      const auto bytes = static_cast<int64_t>(64 * words);

      copy_memory(to.data(), from.data(), bytes);
      std::copy_n(from.begin(), 16 * words, expected.begin());
      EXPECT_EQ(to, expected);

      rewrite_memory(to.data(), bytes);
      read_memory(to.data(), bytes);
      EXPECT_EQ(to, expected);

      write_memory(to.data(), bytes);
      std::fill_n(expected.begin(), 16 * words, 1.0f);
      EXPECT_EQ(to, expected);
    }
  }
}

}  // namespace
}  // namespace plimsoll::kernels
