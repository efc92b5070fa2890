#include "plimsoll/tokenize/sentencepiece/sentencepiece_model.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <random>

#include "plimsoll/io/error.h"
#include "plimsoll/io/testing.h"
#include "plimsoll/tokenize/sentencepiece/charsmap_testing.h"
#include "plimsoll/tokenize/sentencepiece/sentencepiece.h"
#include "plimsoll/tokenize/sentencepiece/sentencepiece_model_testing.h"
#include "plimsoll/tokenize/sentencepiece/t5_tokenizer.h"

namespace plimsoll::tokenize {
namespace {

using testing::HasSubstr;

class SentencePieceModelTest : public testing::Test {
 protected:
  SentencePiece load(std::string_view model) {
    io::write_plainly(path_, model);
    return SentencePiece(path_);
  }
  std::string refusal_of(std::string_view model) {
    try {
      load(model);
    } catch (const io::Error& error) {
      return error.what();
    }
    return "";
  }
  const io::TemporaryDirectory directory_;
  const std::filesystem::path path_ = directory_ / "spiece.model";
};

// A to a, BC to b, BCD to cd.
const std::string kReplaced = std::string("a\0b\0cd\0", 7);
std::vector<uint32_t> units_of_rules() { return DoubleArrayBuilder().build({{"A", 0}, {"BC", 2}, {"BCD", 4}}); }

TEST_F(SentencePieceModelTest, TextIsReplacedByTheCharsmap) {
  const SentencePiece plain = load(first_pieces());
  const SentencePiece replacing = load(first_pieces() + normalizer(charsmap_of(units_of_rules(), kReplaced)));
  EXPECT_EQ(replacing.encode("ABCBCD"), plain.encode("abcd"));
  EXPECT_NE(plain.encode("ABCBCD"), plain.encode("abcd"));
}

TEST_F(SentencePieceModelTest, DecodedTextIsReplacedByTheOtherCharsmap) {
  const std::vector<uint32_t> units = DoubleArrayBuilder().build({{"a", 4}});
  const SentencePiece model = load(first_pieces() + denormalizer(charsmap_of(units, kReplaced)));
  const std::vector<int64_t> ids = {4, 5}, same_ids = {8, 9, 5};
  EXPECT_EQ(model.decode(ids), load(first_pieces()).decode(same_ids));
}

// Before the charsmap was checked most of these ended the process.
TEST_F(SentencePieceModelTest, OddUnitsAreAnErrorOrHarmless) {
  std::mt19937_64 random(1);
  int refused = 0;
  for (int round = 0; round < 600; ++round) {
    std::vector<uint32_t> units = units_of_rules();
    for (uint64_t i = random() % 64 + 1; i-- > 0;) units[random() % units.size()] = static_cast<uint32_t>(random());
    if (round % 2 == 0) units[0] = units_of_rules()[0];
    const std::string part = charsmap_of(units, kReplaced);
    const std::string model = first_pieces() + (round % 3 == 0 ? denormalizer(part) : normalizer(part));
    try {
      const SentencePiece pieces = load(model);
      for (const char* text : {"ABCD", "the fox \xff\xfe\xe7\x8b\x90", "\x01\x02\x03zyx"}) {
        pieces.decode(pieces.encode(text));
      }
    } catch (const io::Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("precompiled_charsmap"));
      ++refused;
    }
  }
  EXPECT_GT(refused, 100);
}

TEST_F(SentencePieceModelTest, EveryCharsmapInTheFileIsChecked) {
  const std::string good = charsmap_of(units_of_rules(), kReplaced), bad = charsmap_of({0x7fffffff}, kReplaced);
  const std::string refused = "precompiled_charsmap: expected offsets";
  EXPECT_THAT(refusal_of(first_pieces() + normalizer(bad) + normalizer(good)), HasSubstr(refused));
  EXPECT_THAT(refusal_of(first_pieces() + normalizer(good) + normalizer(bad)), HasSubstr(refused));
  EXPECT_THAT(refusal_of(bytes_field(3, bytes_field(2, good) + bytes_field(2, bad)) + first_pieces()),
              HasSubstr(refused));
  EXPECT_THAT(refusal_of(first_pieces() + denormalizer(bad)), HasSubstr(refused));
  // A tag in more bytes than it needs is the same tag.
  EXPECT_THAT(refusal_of(first_pieces() + std::string("\x9a\x80", 2) + '\0' + varint(bytes_field(2, bad).size()) +
                         bytes_field(2, bad)),
              HasSubstr(refused));
}

// The library recurses once for each byte of a piece.
TEST_F(SentencePieceModelTest, LongPiecesAreRefused) {
  EXPECT_THAT(refusal_of(first_pieces() + piece(std::string(1025, 'x'))),
              HasSubstr("piece: expected at most 1024 bytes"));
  EXPECT_THAT(refusal_of(first_pieces() + piece(std::string(4'000'000, 'x'))), HasSubstr("at most 1024 bytes"));
  EXPECT_THAT(refusal_of(first_pieces() + bytes_field(2, bytes_field(44, std::string(1025, '?')))),
              HasSubstr("unk_surface: expected at most 1024 bytes"));
  EXPECT_EQ(load(first_pieces() + piece(std::string(1024, 'x'))).encode("x" + std::string(1023, 'x')).size(), 2);
}

// The library has room for 64 matches and counts beyond it.
TEST_F(SentencePieceModelTest, UserDefinedPiecesAreNestedSixtyFourDeepAtMost) {
  std::string model = first_pieces();
  for (size_t size = 1; size <= 64; ++size) model += piece(std::string(size, 'x'), PieceType::kUserDefined);
  model += piece(std::string("xy"), PieceType::kUserDefined) + piece("xyz", PieceType::kUserDefined);
  EXPECT_EQ(load(model).encode(std::string(128, 'x')).size(), 3);
  model += piece(std::string(65, 'x') + '\0' + "behind", PieceType::kUserDefined);
  EXPECT_THAT(refusal_of(model), HasSubstr("at most 64 user-defined pieces"));
}

TEST_F(SentencePieceModelTest, ScoresAreFinite) {
  using Limits = std::numeric_limits<float>;
  for (const float score : {Limits::quiet_NaN(), Limits::infinity(), -Limits::infinity()}) {
    EXPECT_THAT(refusal_of(first_pieces() + piece("x", PieceType::kNormal, score)),
                HasSubstr("piece 10: expected a finite score"));
  }
  EXPECT_EQ(refusal_of(first_pieces() + piece("x", PieceType::kNormal, Limits::lowest())), "");
}

TEST_F(SentencePieceModelTest, PiecesThatTheLibraryRefusesAreAnError) {
  for (const std::string& more :
       {piece(""), piece("a"), piece("<pad>", PieceType::kControl), piece("<u2>", PieceType::kUnknown),
        piece("<0x41>", PieceType::kByte), bytes_field(2, varint_field(35, 1)), piece(std::string(1, '\0')),
        piece(std::string("\0x", 2), PieceType::kUserDefined)}) {
    EXPECT_THAT(refusal_of(first_pieces() + more), HasSubstr("expected a sentencepiece model"));
  }
  EXPECT_THAT(refusal_of(piece("a") + piece("b")), HasSubstr("expected a sentencepiece model"));  // no unknown
}

TEST_F(SentencePieceModelTest, EveryTypeOfModelIsAnErrorOrEncodes) {
  for (uint64_t type = 0; type <= 5; ++type) {
    const std::string model = first_pieces() + piece("cd", PieceType::kUnused) + bytes_field(2, varint_field(3, type));
    const SentencePiece pieces = load(model);
    EXPECT_THAT(pieces.encode("abcd e"), testing::Each(testing::AllOf(testing::Ge(0), testing::Lt(11)))) << type;
  }
}

TEST_F(SentencePieceModelTest, MalformedFilesAreAnError) {
  const std::string good = first_pieces() + normalizer(charsmap_of(units_of_rules(), kReplaced));
  for (size_t size = 0; size < good.size(); size += size < 200 ? 1 : 97) {
    try {
      load(good.substr(0, size)).encode("ABCD");
    } catch (const io::Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("expected"));
    }
  }
  EXPECT_THAT(refusal_of(good + std::string("\x1b\x1c", 2)), HasSubstr("expected a sentencepiece model"));  // a group
  EXPECT_THAT(refusal_of(good + std::string("\x02\x00", 2)), HasSubstr("expected a sentencepiece model"));  // field 0
  EXPECT_THAT(refusal_of(good + std::string(11, '\xff')), HasSubstr("expected a sentencepiece model"));
}

TEST_F(SentencePieceModelTest, SelfTestIsLeftOut) {
  const std::string sample = bytes_field(1, bytes_field(1, "ab") + bytes_field(2, "something else"));
  testing::internal::CaptureStderr();
  const SentencePiece model = load(first_pieces() + normalizer(charsmap_of(units_of_rules(), kReplaced)) +
                                   bytes_field(4, sample + sample + sample));
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  EXPECT_EQ(model.encode("ab"), load(first_pieces()).encode("ab"));
}

TEST_F(SentencePieceModelTest, TextsBeyondWhatTheLibraryCountsAreRefused) {
  const std::string longest(256, 'x');
  const std::string charsmap = charsmap_of(DoubleArrayBuilder().build({{"A", 0}}), longest + '\0');
  const SentencePiece model = load(first_pieces() + normalizer(charsmap) + denormalizer(charsmap));
  EXPECT_EQ(model.encode(std::string(10, 'A')), load(first_pieces()).encode(std::string(2560, 'x')));
  EXPECT_THROW(model.encode(std::string(200'000, 'A')), io::Error);
  EXPECT_THROW(model.decode(std::vector<int64_t>(40'000, 4)), io::Error);
}

TEST_F(SentencePieceModelTest, T5NeedsItsThreeSpecialPieces) {
  io::write_plainly(path_, piece("<unk>", PieceType::kUnknown) + piece("a"));
  EXPECT_THROW(T5Tokenizer(directory_.path(), 100), io::Error);
  io::write_plainly(path_, first_pieces());
  EXPECT_EQ(T5Tokenizer(directory_.path(), 110).encode("a").back(), T5Tokenizer::kEnd);
}

}  // namespace
}  // namespace plimsoll::tokenize
