#include "plimsoll/tokenize/token_texts.h"

#include <gtest/gtest.h>

#include "plimsoll/tokenize/byte_tokenizer.h"
#include "plimsoll/tokenize/json/tokenizer_json_testing.h"

namespace plimsoll::tokenize {
namespace {

// ▁a, ▁b, c, <0xC3>, <0xA9> and the special <s>.
TokenizerJson words() {
  nlohmann::json file =
      file_of({{"\u2581a", 0}, {"\u2581b", 1}, {"c", 2}, {"<0xC3>", 3}, {"<0xA9>", 4}}, nlohmann::json::array());
  file["added_tokens"] = nlohmann::json::array({added_token("<s>", 5, {{"special", true}})});
  file["decoder"] =
      sequence_of("decoders", {{{"type", "Replace"}, {"pattern", {{"String", "\u2581"}}}, {"content", " "}},
                               {{"type", "ByteFallback"}},
                               {{"type", "Fuse"}},
                               {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}});
  return load(file);
}

TEST(TokenTexts, JoinToTheTextOfAllTokens) {
  const TokenizerJson tokenizer = words();
  const Ids ids = {0, 2, 1, 5, 0, 1};
  TokenTexts texts(tokenizer);
  std::string joined;
  for (const int64_t id : ids) {
    joined += texts.of(id, Specials::kWithout).text;
    texts.follow(id);
  }
  EXPECT_EQ(joined, "ac b a b");
  EXPECT_EQ(joined, tokenizer.decode(ids));
}

TEST(TokenTexts, ASpecialTokenAndAnIdWithoutATokenAreNothingToStandBehind) {
  const TokenizerJson tokenizer = words();
  TokenTexts texts(tokenizer);
  for (const int64_t id : {5, 99}) texts.follow(id);
  EXPECT_EQ(texts.of(0, Specials::kWith).text, "a") << "it begins the text";
  texts.follow(2);
  texts.follow(5);
  EXPECT_EQ(texts.of(0, Specials::kWith).text, " a");
  EXPECT_EQ(texts.of(5, Specials::kWith).text, "<s>");
  EXPECT_EQ(texts.of(5, Specials::kWithout).text, "");
}

std::string joined_bytes(const Tokenizer& tokenizer, const Ids& ids) {
  TokenTexts texts(tokenizer);
  std::string joined;
  for (const int64_t id : ids) {
    joined += texts.bytes_of(id, Specials::kWithout);
    texts.follow(id);
  }
  return joined;
}

TEST(TokenTexts, BytesOfTokensJoinToThoseOfTheTextWherePiecesAreNoCharacters) {
  const TokenizerJson tokenizer = words();
  const Ids ids = {0, 3, 4, 2, 1, 5, 3, 4};
  EXPECT_EQ(joined_bytes(tokenizer, ids), "a\u00e9c b\u00e9");
  EXPECT_EQ(joined_bytes(tokenizer, ids), tokenizer.decode(ids));
  TokenTexts texts(tokenizer);
  EXPECT_EQ(texts.bytes_of(3, Specials::kWith), "\xC3");
  texts.follow(3);
  EXPECT_EQ(texts.bytes_of(4, Specials::kWith), "\xA9");
  EXPECT_EQ(texts.bytes_of(2, Specials::kWith), "c") << "behind half a character";
  EXPECT_EQ(texts.bytes_of(5, Specials::kWith), "<s>");
  EXPECT_EQ(texts.bytes_of(5, Specials::kWithout), "");
}

TEST(TokenTexts, BytesOfAByteTokenizerAreItsOwn) {
  const std::string text = "a\U0001F496b";
  const ByteTokenizer tokenizer;
  EXPECT_EQ(joined_bytes(tokenizer, tokenizer.encode(text)), text);
  EXPECT_EQ(joined_bytes(tokenizer, {0xF0, 0x9F, 'a'}),
            "\xF0\x9F"
            "a")
      << "broken";
}

TEST(TokenTexts, SayWhetherACharacterIsWhole) {
  const TokenizerJson tokenizer = words();
  TokenTexts texts(tokenizer);
  texts.follow(2);
  EXPECT_FALSE(texts.of(3, Specials::kWith).complete);
  EXPECT_TRUE(texts.of(2, Specials::kWith).complete);
}

}  // namespace
}  // namespace plimsoll::tokenize
