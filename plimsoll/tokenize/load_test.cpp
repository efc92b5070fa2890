#include "plimsoll/tokenize/load.h"

#include <gmock/gmock.h>

#include "plimsoll/io/error_testing.h"
#include "plimsoll/tokenize/byte_tokenizer.h"
#include "plimsoll/tokenize/json/tokenizer_json_testing.h"
#include "plimsoll/tokenize/sentencepiece/sentencepiece_model_testing.h"

namespace plimsoll::tokenize {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class LoadTest : public testing::Test {
 protected:
  void write_json() {
    io::write_plainly(directory_ / "tokenizer.json", file_of({{"a", 5}}, nlohmann::json::array()).dump());
  }
  void write_sentencepiece() {
    std::string model;
    for (const char* name : {"<pad>", "</s>"}) model += piece(name, PieceType::kControl);
    io::write_plainly(directory_ / "spiece.model", model + piece("<unk>", PieceType::kUnknown) +
                                                       piece("\xe2\x96\x81"
                                                             "a"));
  }
  std::vector<int64_t> ids_of_a(int64_t vocabulary) {
    return load(directory_.path(), vocabulary)->encode("a", Specials::kWithout);
  }
  const io::TemporaryDirectory directory_;
};

TEST_F(LoadTest, PrefersTokenizerJsonThenSentencepieceThenBytes) {
  EXPECT_THAT(ids_of_a(kByteVocabulary), ElementsAre('a'));
  write_sentencepiece();
  EXPECT_THAT(ids_of_a(4), ElementsAre(3));
  write_json();
  EXPECT_THAT(ids_of_a(6), ElementsAre(5));
}

TEST_F(LoadTest, SaysWhatItLookedFor) {
  const auto refusal = [&] { return io::error_of([&] { load(directory_.path(), 300); }); };
  EXPECT_THAT(
      refusal(),
      HasSubstr("expected tokenizer.json, spiece.model or a vocabulary of 256 bytes, got neither file and 300"));
  io::write_plainly(directory_ / "tokenizer.model", "");
  EXPECT_THAT(refusal(), HasSubstr("transformers writes tokenizer.json"));
}

}  // namespace
}  // namespace plimsoll::tokenize
