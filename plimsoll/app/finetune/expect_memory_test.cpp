#include "plimsoll/app/finetune/expect_memory.h"

#include <gtest/gtest.h>

#include <vector>

#include "plimsoll/app/finetune/adapters.h"
#include "plimsoll/app/finetune/testing.h"
#include "plimsoll/io/testing.h"

namespace plimsoll::app {
namespace {

class SmallerRunOf : public testing::Test {
 protected:
  SmallerRunOf() {
    io::write_plainly(directory_ / "config.json", tiny_llama(true).dump());
    full_.run.source = directory_.path();
  }

  // Words for the first run that holds; "": none does.
  static std::string first(const FinetuneOptions& options, int64_t ranks,
                           const std::function<bool(const FinetuneOptions&)>& holds) {
    return smaller_run(options, ranks, holds).value_or("");
  }
  static bool is_lora(const FinetuneOptions& options) { return options.lora.has_value(); }
  static bool releases(const FinetuneOptions& options) { return options.run.release_gradients; }

  io::TemporaryDirectory directory_;
  FinetuneOptions full_;
};

TEST_F(SmallerRunOf, RanksHasRowsThatTheyShareEvenly) {
  full_.run.batch = 6;
  full_.run.shard = shard::Sharing::kDdp;
  EXPECT_EQ(first(full_, 2, [](const FinetuneOptions& other) { return other.run.batch < 6; }), "--batch 2");
  std::vector<int64_t> rows;
  first(full_, 2, [&](const FinetuneOptions& other) {
    rows.push_back(other.run.batch);
    return false;
  });
  EXPECT_FALSE(rows.empty());
  for (const int64_t each : rows) EXPECT_EQ(each % 2, 0) << each;
}

TEST_F(SmallerRunOf, AWholeModelNamesWhatAdaptersDoNotTake) {
  const std::string least = "--batch 1 --checkpoint-activations";
  EXPECT_EQ(first(full_, 1, is_lora), "--lora --base fp8 " + least + " in place of --full");
  full_.run.masters = optim::MasterKind::kSplit;
  full_.run.release_gradients = true;
  EXPECT_EQ(first(full_, 1, is_lora),
            "--lora --base fp8 " + least + " in place of --full --masters split --release-gradients");
  FinetuneOptions adapters = full_;
  adapters.run = FinetuneOptions().run;
  adapters.run.source = directory_.path();
  adapters.lora = usual_lora();
  const auto is_fp8 = [](const FinetuneOptions& other) { return other.base == models::WeightDtype::kFp8; };
  EXPECT_EQ(first(adapters, 1, is_fp8), "--lora --base fp8 " + least);
}

TEST_F(SmallerRunOf, ABaseOfCodesIsNotNamedWhereItIsRefused) {
  FinetuneOptions four_bits = full_;
  four_bits.run.recipe = parse_recipe("nvfp4");
  EXPECT_EQ(first(four_bits, 1, is_lora), "--lora --batch 1 --checkpoint-activations in place of --full");
  full_.run.shard = shard::Sharing::kFsdp;
  EXPECT_EQ(first(full_, 2, is_lora), "--lora --batch 2 --checkpoint-activations in place of --full");
}

TEST_F(SmallerRunOf, GradientsAreReleasedWhereNothingNeedsThemAll) {
  const std::string words =
      "--batch 1 --checkpoint-activations --masters none --optimizer-state 8bit --release-gradients";
  EXPECT_EQ(first(full_, 1, releases), words);
  FinetuneOptions clipped = full_, shared = full_, narrow = full_, scaled = full_;
  clipped.run.clip = 0.5;
  EXPECT_EQ(first(clipped, 1, releases), words + " without --clip");
  shared.run.shard = shard::Sharing::kDdp;
  EXPECT_EQ(first(shared, 1, releases), "");
  narrow.run.recipe = parse_recipe("fp16");
  EXPECT_EQ(first(narrow, 1, releases), "");
  scaled.run.loss_scale = parse_loss_scale("64");
  EXPECT_EQ(first(scaled, 1, releases), "");
}

}  // namespace
}  // namespace plimsoll::app
