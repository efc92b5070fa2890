#include "plimsoll/tokenize/utf8.h"

#include <gtest/gtest.h>

#include "plimsoll/tokenize/json/byte_alphabet.h"

namespace plimsoll::tokenize {
namespace {

TEST(Utf8, ReadsWhatItWritesOfEveryCharacter) {
  for (char32_t value = 0; value < 0x110000; ++value) {
    std::string text;
    append_character(text, value);
    const Character character = character_at(text, 0);
    if (value >= 0xD800 && value < 0xE000) {
      EXPECT_EQ(character.state, Character::State::kBroken);
      EXPECT_EQ(valid_bytes(text), 0U);
    } else {
      ASSERT_EQ(character.value, value);
      ASSERT_EQ(character.bytes, text.size());
      ASSERT_EQ(valid_bytes(text), text.size());
      for (size_t cut = 1; cut < text.size(); ++cut) {
        ASSERT_EQ(character_at(text.substr(0, cut), 0).state, Character::State::kCut);
        ASSERT_TRUE(ends_inside_character(text.substr(0, cut)));
      }
      ASSERT_FALSE(ends_inside_character(text));
    }
  }
}

TEST(Utf8, FindsTheFirstByteThatIsNone) {
  for (const char* bytes : {"\x80", "\xC0\xAF", "\xC1\xBF", "\xE0\x9F\xBF", "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80",
                            "\xF5\x80\x80\x80", "\xFF"}) {
    EXPECT_EQ(valid_bytes(std::string("é") + bytes), 2U);
    EXPECT_FALSE(ends_inside_character(bytes)) << bytes;
  }
}

// Table 3-8 of The Unicode Standard: one U+FFFD for each longest part that could begin a character.
TEST(Utf8, ReplacesBrokenPartsAsUnicodeRecommends) {
  const std::string mark = "\xEF\xBF\xBD";
  EXPECT_EQ(replace_broken("\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64"),
            "a" + mark + mark + mark + "b" + mark + "c" + mark + mark + "d");
  EXPECT_EQ(replace_broken("a\xE2\x82"), "a" + mark);
  EXPECT_EQ(replace_broken("狐"), "狐");
}

TEST(AByteAlphabet, HasACharacterForEachByte) {
  for (int byte = 0; byte < 256; ++byte) {
    const char32_t character = character_of_byte(static_cast<uint8_t>(byte));
    EXPECT_EQ(byte_of_character(character), byte);
    EXPECT_FALSE(is_space(character));
  }
  // As GPT-2 spells a space, a line's end and é.
  EXPECT_EQ(to_byte_alphabet(" \né"), "\u0120\u010a\u00c3\u00a9");
  EXPECT_EQ(byte_of_character(' '), std::nullopt);
  EXPECT_EQ(byte_of_character(0x144), std::nullopt);
}

}  // namespace
}  // namespace plimsoll::tokenize
