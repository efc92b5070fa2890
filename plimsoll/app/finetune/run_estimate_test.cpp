#include "plimsoll/app/finetune/run_estimate.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "plimsoll/io/testing.h"

namespace plimsoll::app {
namespace {

// A Llama of two layers: heads of 16, of which keys and values have half as many, dim 64, feed-forward 160.
constexpr double kLayer = 2 * 64 * 64 + 2 * 32 * 64 + 3 * 160 * 64, kHead = 300 * 64;

TEST(RunEstimate, CountsProductsOfAllTokensAndHeadsOfThoseThatCount) {
  const io::TemporaryDirectory directory;
  FinetuneOptions full, adapters;
  full.run.source = adapters.run.source = directory.path();
  adapters.lora = usual_lora();
  for (const bool ties_head : {false, true}) {
    io::write_plainly(directory / "config.json", nlohmann::json{{"model_type", "llama"},
                                                                {"vocab_size", 300},
                                                                {"hidden_size", 64},
                                                                {"num_hidden_layers", 2},
                                                                {"num_attention_heads", 4},
                                                                {"num_key_value_heads", 2},
                                                                {"intermediate_size", 160},
                                                                {"max_position_embeddings", 128},
                                                                {"tie_word_embeddings", ties_head}}
                                                     .dump());
    EXPECT_EQ(product_operations(full, 1000, 1000), 6 * 1000 * (2 * kLayer + kHead));
    EXPECT_EQ(product_operations(full, 1000, 300), 6 * (1000 * 2 * kLayer + 300 * kHead));
    // A frozen weight has no gradient.
    EXPECT_EQ(product_operations(adapters, 1000, 300), 4 * (1000 * 2 * kLayer + 300 * kHead));
  }
}

}  // namespace
}  // namespace plimsoll::app
