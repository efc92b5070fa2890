#include "plimsoll/tokenize/sentencepiece/t5_tokenizer.h"

#include <gmock/gmock.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "plimsoll/io/error.h"
#include "plimsoll/io/testing.h"
#include "plimsoll/tokenize/sentencepiece/sentencepiece_model_testing.h"
#include "plimsoll/tokenize/token_texts.h"

namespace plimsoll::tokenize {
namespace {

using testing::ElementsAre;

// Ids behind the special pieces: the blank and "a".
std::string letters() { return piece("\xe2\x96\x81") + piece("a"); }

std::string special(const char* name) { return piece(name, PieceType::kControl); }

// With a piece for each byte, as mT5 has them.
std::string model_with_bytes() {
  std::string model = special("<pad>") + special("</s>") + piece("<unk>", PieceType::kUnknown) + letters();
  for (int byte = 0; byte < 256; ++byte) model += piece(io::compose("<0x{:02X}>", byte), PieceType::kByte);
  constexpr uint32_t kTrainer = 2, kByteFallback = 35;
  return model + bytes_field(kTrainer, varint_field(kByteFallback, 1));
}

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

TEST_F(T5TokenizerTest, ATextThatEndsInTheStartOfASentinelIsReadToItsEndAlone) {
  const T5Tokenizer t5 =
      tokenizer(special("<pad>") + special("</s>") + piece("<unk>", PieceType::kUnknown) + letters());
  const std::string_view start = "<extra_id_";
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* const pages = mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(pages, MAP_FAILED);
  char* const behind = static_cast<char*>(pages) + page;  // nothing may be read from here on
  ASSERT_EQ(mprotect(behind, page, PROT_NONE), 0);
  char* const text = behind - start.size();
  std::ranges::copy(start, text);
  EXPECT_EQ(t5.token_to_id({text, start.size()}), std::nullopt);
  munmap(pages, 2 * page);
}

TEST_F(T5TokenizerTest, BytesOfACharacterThatNoPieceCoversAreItsTokens) {
  io::write_plainly(directory_ / "spiece.model", model_with_bytes());
  const T5Tokenizer mt5(directory_.path(), 512);
  const std::vector<int64_t> ids = mt5.encode("a\u00e9a", Specials::kWithout);
  ASSERT_EQ(ids.size(), 5);
  TokenTexts texts(mt5);
  std::vector<std::string> bytes;
  for (const int64_t id : ids) {
    bytes.push_back(texts.bytes_of(id, Specials::kWith));
    texts.follow(id);
  }
  EXPECT_THAT(bytes, ElementsAre("", "a", "\xC3", "\xA9", "a"));
  EXPECT_EQ(mt5.bytes_of(ids[2]), "") << "of the other tokens they depend on what stands before them";
}

}  // namespace
}  // namespace plimsoll::tokenize
