#include "plimsoll/tokenize/sentencepiece/t5_tokenizer.h"

#include <gmock/gmock.h>

#include "plimsoll/io/testing.h"
#include "plimsoll/tokenize/sentencepiece/sentencepiece_model_testing.h"

namespace plimsoll::tokenize {
namespace {

using testing::ElementsAre;

// Ids behind the special pieces: the blank and "a".
std::string letters() { return piece("\xe2\x96\x81") + piece("a"); }

std::string special(const char* name) { return piece(name, PieceType::kControl); }

class T5TokenizerTest : public testing::Test {
 protected:
  T5Tokenizer tokenizer(std::string_view model) {
    io::write_plainly(directory_ / "spiece.model", model);
    return {directory_.path(), 8};
  }
  const io::TemporaryDirectory directory_;
};

TEST_F(T5TokenizerTest, TheUnknownPieceOfT5IsTwo) {
  const T5Tokenizer t5 =
      tokenizer(special("<pad>") + special("</s>") + piece("<unk>", PieceType::kUnknown) + letters());
  EXPECT_THAT(t5.encode("a<unk>a"), ElementsAre(3, 4, 2, 3, 4, 1));
  EXPECT_THAT(t5.encode("ax"), ElementsAre(3, 4, 2, 1));
  EXPECT_EQ(t5.decode(std::vector<int64_t>{3, 4, 2, 0, 1}), "a");
}

TEST_F(T5TokenizerTest, BehindAStartPieceTheUnknownPieceIsThree) {
  const T5Tokenizer umt5 =
      tokenizer(special("<pad>") + special("</s>") + special("<s>") + piece("<unk>", PieceType::kUnknown) + letters());
  EXPECT_THAT(umt5.encode("a<unk>a"), ElementsAre(4, 5, 3, 4, 5, 1));
  EXPECT_THAT(umt5.encode("ax"), ElementsAre(4, 5, 3, 1));
  EXPECT_EQ(umt5.decode(std::vector<int64_t>{2, 4, 5, 3, 0, 1}), "a");
}

}  // namespace
}  // namespace plimsoll::tokenize
