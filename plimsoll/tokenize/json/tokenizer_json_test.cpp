#include "plimsoll/tokenize/json/tokenizer_json.h"

#include <gmock/gmock.h>
#include <malloc.h>

#include <thread>

#include "plimsoll/io/error_testing.h"
#include "plimsoll/tokenize/decode_stream.h"
#include "plimsoll/tokenize/json/tokenizer_json_testing.h"

namespace plimsoll::tokenize {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::ThrowsMessage;

const json kLetters = {{"a", 0}, {"b", 1}, {"c", 2}, {"ab", 3}, {"bc", 4}, {"abc", 5}};

TEST(BytePairEncoding, MergesThePairThatIsListedFirst) {
  // ab c: there is no merge of these two.
  EXPECT_THAT(load(file_of(kLetters, {"a b", "b c"})).encode("abc"), ElementsAre(3, 2));
  // a bc, then abc.
  EXPECT_THAT(load(file_of(kLetters, {"b c", "a b", "a bc"})).encode("abc"), ElementsAre(5));
}

TEST(BytePairEncoding, MergesTheLeftmostOfEqualPairsFirst) {
  const TokenizerJson tokenizer = load(file_of({{"a", 0}, {"aa", 1}}, {"a a"}));
  EXPECT_THAT(tokenizer.encode("aaaaa"), ElementsAre(1, 1, 0));
}

TEST(BytePairEncoding, ReadsMergesAsPairsToo) {
  const json merges = json::array({json::array({"b", "c"}), json::array({"a", "bc"})});
  EXPECT_THAT(load(file_of(kLetters, merges)).encode("abc"), ElementsAre(5));
}

TEST(BytePairEncoding, TakesAWholeWordOfTheVocabularyIfItIgnoresMerges) {
  json file = file_of(kLetters, {"a b"});
  EXPECT_THAT(load(file).encode("abc"), ElementsAre(3, 2));
  file["model"]["ignore_merges"] = true;
  EXPECT_THAT(load(file).encode("abc"), ElementsAre(5));
}

TEST(BytePairEncoding, LosesUnknownCharactersWithoutAnUnknownToken) {
  EXPECT_THAT(load(file_of(kLetters, json::array())).encode("axb"), ElementsAre(0, 1));
}

TEST(BytePairEncoding, GivesOneUnknownTokenForEachCharacterOrForAllInARow) {
  json file = file_of({{"a", 0}, {"?", 1}}, json::array());
  file["model"]["unk_token"] = "?";
  EXPECT_THAT(load(file).encode("axya"), ElementsAre(0, 1, 1, 0));
  file["model"]["fuse_unk"] = true;
  EXPECT_THAT(load(file).encode("axya"), ElementsAre(0, 1, 0));
}

TEST(BytePairEncoding, FallsBackToBytesThatTheVocabularyHas) {
  // é is C3 A9; € is E2 82 AC, and <0xAC> is missing.
  json file = file_of({{"<0xC3>", 0}, {"<0xA9>", 1}, {"<0xE2>", 2}, {"<0x82>", 3}, {"?", 4}}, json::array());
  file["model"]["unk_token"] = "?";
  file["model"]["byte_fallback"] = true;
  EXPECT_THAT(load(file).encode("é€"), ElementsAre(0, 1, 4));
}

// a, aa, aaaa, ..., 2^10 times a: tokens 0 to 10.
json file_of_powers() {
  json vocabulary = {{"a", 0}}, merges = json::array();
  for (int power = 1; power <= 10; ++power) {
    const std::string half(size_t{1} << (power - 1), 'a');
    vocabulary[half + half] = power;
    merges.push_back(half + " " + half);
  }
  return file_of(vocabulary, merges);
}

// A rescan after each merge would take 10^12 steps.
TEST(BytePairEncoding, TakesAMillionCharactersInOneWord) {
  EXPECT_EQ(load(file_of_powers()).encode(std::string(1 << 20, 'a')), Ids(1 << 10, 10));
}

TEST(BytePairEncoding, GivesBackTheMemoryOfALongWord) {
  const TokenizerJson tokenizer = load(file_of_powers());
  const std::string text(1 << 20, 'a');
  tokenizer.encode("a");
  const auto allocated = [] {
    const struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
  };
  const size_t before = allocated();
  EXPECT_EQ(tokenizer.encode(text).size(), size_t{1} << 10);
  EXPECT_LT(allocated(), before + (size_t{4} << 20)) << "a symbol takes 12 bytes, a pair 24";
}

json with_added(const json& tokens) {
  json file = file_of({{"a", 0}, {"b", 1}, {" ", 2}}, json::array());
  file["added_tokens"] = tokens;
  return file;
}

TEST(AddedTokens, AreFoundLongestFirst) {
  const TokenizerJson tokenizer = load(with_added({added_token("<x>", 3), added_token("<x>a", 4)}));
  EXPECT_THAT(tokenizer.encode("a<x>b<x>a"), ElementsAre(0, 3, 1, 4));
}

TEST(AddedTokens, TakeTheSpacesBesideThemAlong) {
  const TokenizerJson left = load(with_added(json::array({added_token("<x>", 3, {{"lstrip", true}})})));
  EXPECT_THAT(left.encode("a  <x> b"), ElementsAre(0, 3, 2, 1));
  const TokenizerJson right = load(with_added(json::array({added_token("<x>", 3, {{"rstrip", true}})})));
  EXPECT_THAT(right.encode("a <x>  b"), ElementsAre(0, 2, 3, 1));
}

TEST(AddedTokens, OfSingleWordsAreNotFoundInsideOfOthers) {
  const TokenizerJson tokenizer = load(with_added(json::array({added_token("ab", 3, {{"single_word", true}})})));
  EXPECT_THAT(tokenizer.encode("ab aab"), ElementsAre(3, 2, 0, 0, 1));
}

TEST(AddedTokens, ThatAreNormalizedAreFoundInTheNormalizedText) {
  json file = with_added({added_token("é", 3, {{"normalized", true}}), added_token("à", 4)});
  file["normalizer"] = {{"type", "NFC"}};
  // Two e with an accent: one character, and a letter and a mark. Of a with a grave accent, only the first is the token.
  EXPECT_THAT(load(file).encode("\u00e9e\u0301\u00e0a\u0300"), ElementsAre(3, 3, 4));
}

TEST(PostProcessors, PutTheirIdsAroundTheTextOnlyIfAsked) {
  json file = with_added({added_token("<s>", 3, {{"special", true}}), added_token("</s>", 4, {{"special", true}})});
  const auto special = [](const char* name) { return json{{"SpecialToken", {{"id", name}, {"type_id", 0}}}}; };
  file["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single", {special("<s>"), {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}, special("</s>")}},
      {"special_tokens", {{"<s>", {{"ids", {3}}}}, {"</s>", {{"ids", {4, 4}}}}}}};
  const TokenizerJson tokenizer = load(file);
  EXPECT_THAT(tokenizer.encode("a"), ElementsAre(3, 0, 4, 4));
  EXPECT_THAT(tokenizer.encode("a", Specials::kWithout), ElementsAre(0));
  EXPECT_THAT(tokenizer.encode("", Specials::kWithout), IsEmpty());
  EXPECT_EQ(tokenizer.decode(Ids{3, 0, 4}), "a");
  EXPECT_EQ(tokenizer.decode(Ids{3, 0, 4}, Specials::kWith), "<s>a</s>");
}

TEST(ATokenizerJson, LeavesOutIdsThatAreNoTokenAndRefusesThoseBeyondIt) {
  const TokenizerJson tokenizer = load(file_of({{"a", 0}, {"b", 7}}, json::array()));
  EXPECT_EQ(tokenizer.size(), 8);
  EXPECT_EQ(tokenizer.decode(Ids{0, 3, 7}), "ab");
  EXPECT_EQ(tokenizer.decode_part(Ids{0, 3, -1, 8, int64_t{1} << 40, 7}, Specials::kWithout).text, "ab");
  for (const int64_t id : {int64_t{-1}, int64_t{8}, int64_t{1} << 40}) {
    EXPECT_THAT(
        [&] {
          tokenizer.decode(Ids{0, id});
        },
        ThrowsMessage<io::Error>("tokenizer: expected ids of 0 to 7, got " + std::to_string(id)));
  }
  EXPECT_EQ(tokenizer.id_to_token(3), std::nullopt);
  EXPECT_EQ(tokenizer.id_to_token(7), "b");
  EXPECT_EQ(tokenizer.token_to_id("b"), 7);
  EXPECT_EQ(tokenizer.token_to_id("x"), std::nullopt);
}

TEST(ATokenizerJson, TakesTheFirstAndTheLastTokenFromItsConfig) {
  const io::TemporaryDirectory directory;
  io::write_plainly(directory / "tokenizer.json", with_added(json::array({added_token("<s>", 3)})).dump());
  io::write_plainly(directory / "tokenizer_config.json", R"({"bos_token": {"content": "<s>"}, "eos_token": "b"})");
  const TokenizerJson tokenizer(directory.path());
  EXPECT_EQ(tokenizer.bos(), 3);
  EXPECT_EQ(tokenizer.eos(), 1);
  EXPECT_EQ(load(with_added(json::array())).eos(), std::nullopt);
}

TEST(ATokenizerJson, RefusesATextThatIsNotUtf8) {
  const TokenizerJson tokenizer = load(file_of(kLetters, json::array()));
  for (const char* bytes : {"ab\xff", "ab\xed\xa0\x80", "ab\xe2\x82", "ab\xc0\x80"}) {
    EXPECT_EQ(io::error_of([&] { tokenizer.encode(bytes); }),
              "tokenizer: expected a text in UTF-8, got another byte at 2");
  }
}

// The bytes of a text as tokens: E7 8B 90 and the bytes of "ab".
json byte_level() {
  json file = file_of({{"\u00e7", 0}, {"\u012d", 1}, {"\u0132", 2}, {"a", 3}, {"b", 4}}, json::array());
  file["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", false}};
  file["decoder"] = {{"type", "ByteLevel"}};
  return file;
}

TEST(ADecodeStream, NeverGivesHalfACharacter) {
  const TokenizerJson tokenizer = load(byte_level());
  EXPECT_THAT(tokenizer.encode("a狐b"), ElementsAre(3, 0, 1, 2, 4));
  DecodeStream stream(tokenizer);
  EXPECT_EQ(stream.next(3), "a");
  EXPECT_EQ(stream.next(0), "");
  EXPECT_EQ(stream.next(1), "");
  EXPECT_EQ(stream.next(2), "狐");
  EXPECT_EQ(stream.next(4), "b");
  EXPECT_EQ(stream.finish(), "");
}

TEST(ADecodeStream, GivesTogetherWhatDecodingGivesForAnyIds) {
  const TokenizerJson tokenizer = load(byte_level());
  for (int64_t code = 0; code < 5 * 5 * 5 * 5 * 5; ++code) {
    Ids ids;
    for (int64_t rest = code, i = 0; i < 5; ++i, rest /= 5) ids.push_back(rest % 5);
    DecodeStream stream(tokenizer);
    std::string text;
    for (const int64_t id : ids) text += stream.next(id);
    text += stream.finish();
    ASSERT_EQ(text, tokenizer.decode(ids)) << code;
  }
}

TEST(ADecodeStream, GivesAWholeCharacterOfByteTokensAtOnce) {
  json file = file_of({{"<0xC3>", 0}, {"<0xA9>", 1}, {"a", 2}}, json::array());
  file["decoder"] = sequence_of("decoders", {{{"type", "ByteFallback"}}, {{"type", "Fuse"}}});
  const TokenizerJson tokenizer = load(file);
  DecodeStream stream(tokenizer);
  EXPECT_EQ(stream.next(0), "");
  EXPECT_EQ(stream.next(1), "é");
  EXPECT_EQ(stream.next(0), "");
  EXPECT_EQ(stream.finish(), "\xef\xbf\xbd");
}

std::string bytes_of(const TokenizerJson& tokenizer, const Ids& ids) {
  std::string bytes;
  for (const int64_t id : ids) bytes += tokenizer.bytes_of(id);
  return bytes;
}

TEST(ATokenizerJson, TellsTheBytesThatATokenAddsInsideOfAText) {
  const TokenizerJson bytes = load(byte_level());
  EXPECT_EQ(bytes.bytes_of(0), "\xe7");
  EXPECT_EQ(bytes_of(bytes, bytes.encode("a狐b")), "a狐b");
  EXPECT_EQ(bytes.bytes_of(-1) + bytes.bytes_of(5), "");

  json file = file_of({{"\u2581a", 0}, {"<0xC3>", 1}, {"<0xA9>", 2}, {"b\u2581", 3}}, json::array());
  file["added_tokens"] = json::array({added_token("<s>", 4, {{"special", true}}), added_token("<t>", 5)});
  const json steps = {{{"type", "Replace"}, {"pattern", {{"String", "\u2581"}}}, {"content", " "}},
                      {{"type", "ByteFallback"}},
                      {{"type", "Fuse"}},
                      {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}};
  file["decoder"] = sequence_of("decoders", steps);
  const TokenizerJson pieces = load(file);
  EXPECT_EQ(bytes_of(pieces, {0, 1, 2, 4, 3, 5}), " aéb <t>");
  EXPECT_EQ(pieces.decode(Ids{0, 1, 2, 4, 3, 5}), "aéb <t>") << "where it begins, the text has no space";
  EXPECT_EQ(pieces.bytes_of(1), "\xc3");

  file["decoder"] = {{"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", "always"}};
  EXPECT_EQ(bytes_of(load(file), {0, 3, 0}), " ab  a");
  file["decoder"] = nullptr;
  EXPECT_EQ(bytes_of(load(file), {3, 5}), " b\u2581 <t>");
}

TEST(ATokenizerJson, GivesTheSameIdsToManyThreads) {
  const TokenizerJson tokenizer = load(file_of(kLetters, {"b c", "a b", "a bc"}));
  std::vector<std::string> texts(100);
  for (size_t i = 0; i < texts.size(); ++i) {
    for (size_t j = 0; j < i; ++j) texts[i] += "abc"[(i * j + j) % 3];
  }
  std::vector<Ids> expected;
  for (const std::string& text : texts) expected.push_back(tokenizer.encode(text));
  std::vector<std::vector<Ids>> results(4);
  std::vector<std::thread> threads;
  for (std::vector<Ids>& result : results) {
    threads.emplace_back([&] {
      for (const std::string& text : texts) result.push_back(tokenizer.encode(text));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::vector<Ids>& result : results) EXPECT_EQ(result, expected);
}

}  // namespace
}  // namespace plimsoll::tokenize
