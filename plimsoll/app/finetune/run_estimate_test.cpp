#include "plimsoll/app/finetune/run_estimate.h"

#include <gtest/gtest.h>

#include "plimsoll/app/finetune/testing.h"
#include "plimsoll/io/testing.h"

namespace plimsoll::app {
namespace {

// Weights of a layer of tiny_llama(), and of its head.
constexpr double kLayer = 2 * 64 * 64 + 2 * 32 * 64 + 3 * 160 * 64, kHead = 300 * 64;

TEST(RunEstimate, CountsProductsOfAllTokensAndHeadsOfThoseThatCount) {
  const io::TemporaryDirectory directory;
  FinetuneOptions full, adapters;
  full.run.source = adapters.run.source = directory.path();
  adapters.lora = usual_lora();
  for (const bool ties_head : {false, true}) {
    io::write_plainly(directory / "config.json", tiny_llama(ties_head).dump());
    EXPECT_EQ(product_operations(full, 1000, 1000), 6 * 1000 * (2 * kLayer + kHead));
    EXPECT_EQ(product_operations(full, 1000, 300), 6 * (1000 * 2 * kLayer + 300 * kHead));
    // A frozen weight has no gradient.
    EXPECT_EQ(product_operations(adapters, 1000, 300), 4 * (1000 * 2 * kLayer + 300 * kHead));
  }
}

}  // namespace
}  // namespace plimsoll::app
