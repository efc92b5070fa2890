#include <gmock/gmock.h>

#include "plimsoll/io/error_testing.h"
#include "plimsoll/tokenize/json/tokenizer_json_testing.h"

namespace plimsoll::tokenize {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

json small() { return file_of({{"a", 0}, {"b", 1}, {"ab", 2}}, {"a b"}); }

// Loading the file's text throws one line that says this, and names the file.
void expect_refused(const std::string& text, const std::string& expected) {
  const io::TemporaryDirectory directory;
  const std::string error = io::error_of([&] { load_text(directory, text); });
  EXPECT_THAT(error, AllOf(HasSubstr(expected), HasSubstr("tokenizer.json"), Not(HasSubstr("\n"))))
      << text.substr(0, 200);
}

void expect_patch_refused(const json& changes, const std::string& expected) {
  json file = small();
  file.merge_patch(changes);
  expect_refused(file.dump(), expected);
}

TEST(AHostileTokenizer, IsRefusedForItsJson) {
  expect_refused("", "expected valid JSON");
  expect_refused("{\"a\": \"\xff\"}", "expected valid JSON");
  expect_refused(R"({"a": "\ud800"})", "expected valid JSON");
  expect_refused("[]", "expected an object, got an array");
  expect_refused(R"({"model": {}, "model": {}})", "expected each key once, got \"model\" twice");
  expect_refused(R"({"model": {"type": "BPE", "vocab": {"a": 0, "a": 1}, "merges": []}})", "expected each key once");
  expect_refused(std::string(100000, '['), "expected JSON nested at most 32 deep");
}

TEST(AHostileTokenizer, IsRefusedForItsVocabulary) {
  const auto with = [](const json& vocabulary) {
    json file = small();
    file["model"]["vocab"] = vocabulary;
    return file.dump();
  };
  expect_refused(with({{"a", 0}, {"b", 0}}), R"(model.vocab: expected each id once, got 0 for "a" and for "b")");
  expect_refused(with({{"a", -1}}), "token \"a\": expected an id from 0 to 2097151, got -1");
  expect_refused(with({{"a", 1 << 21}}), "expected an id from 0 to 2097151, got 2097152");
  expect_refused(with({{"a", 1e300}}), "expected an id from 0 to 2097151");
  expect_refused(with({{"a", 0.5}}), "expected an id from 0 to 2097151, got 0.5");
  expect_refused(with({{"a", "0"}}), "expected an id from 0 to 2097151, got \"0\"");
  expect_refused(with(json::array({"a"})), "model.vocab: expected an object {token: id}");
}

TEST(AHostileTokenizer, IsRefusedForItsMerges) {
  for (const char* merge : {"\"a\"", "\"a b c\"", "[\"a\"]", "[\"a\", \"b\", \"a\"]", "[1, 2]", "{}", "null"}) {
    expect_patch_refused({{"model", {{"merges", json::array({json::parse(merge)})}}}},
                         "model.merges[0]: expected two tokens");
  }
  expect_patch_refused({{"model", {{"merges", json::array({"a b", "a x"})}}}},
                       "model.merges[1]: expected tokens of the vocabulary, got \"x\"");
  expect_patch_refused({{"model", {{"merges", json::array({"b a"})}}}},
                       "expected tokens of the vocabulary, got \"ba\"");
  expect_patch_refused({{"model", {{"merges", "a b"}}}}, "model.merges: expected an array");
}

TEST(AHostileTokenizer, IsRefusedForModelsThatAreNotSupported) {
  expect_patch_refused({{"model", {{"type", "Unigram"}}}}, "model.type: expected BPE, got \"Unigram\"");
  expect_patch_refused({{"model", {{"dropout", 0.1}}}}, "model.dropout: expected none, got 0.1");
  expect_patch_refused({{"model", {{"end_of_word_suffix", "</w>"}}}}, "model.end_of_word_suffix: expected none");
  expect_patch_refused({{"model", {{"byte_fallback", 1}}}}, "model.byte_fallback: expected true or false, got 1");
}

TEST(AHostileTokenizer, IsRefusedForItsAddedTokens) {
  const auto with = [](const json& tokens) { return json{{"added_tokens", tokens}}; };
  expect_patch_refused(with(json::array({added_token("x", 4)})),
                       "added_tokens[0].id: expected 3, the next after the vocabulary, got 4");
  expect_patch_refused(with(json::array({added_token("a", 3)})),
                       "added_tokens[0].id: expected 0, as in the vocabulary, got 3");
  expect_patch_refused(with({added_token("x", 3), added_token("x", 4)}),
                       "added_tokens[1].content: expected each text once");
  expect_patch_refused(with(json::array({added_token("", 3)})), "expected 1 to 4096 bytes");
  expect_patch_refused(with(json::array({added_token(std::string(5000, 'x'), 3)})), "expected 1 to 4096 bytes");
  expect_patch_refused(with(json::array({added_token("x", 3, {{"special", "yes"}})})),
                       "special: expected true or false, got \"yes\"");
  expect_patch_refused(with("x"), "added_tokens: expected an array");
  json holes = small();
  holes["model"] = {{"type", "BPE"}, {"vocab", {{"a", 0}, {"b", 2}}}, {"merges", json::array()}};
  holes["added_tokens"] = json::array({added_token("x", 2)});
  expect_refused(holes.dump(), "expected an id of its own, got 2 of the vocabulary's \"b\"");
}

json split(const json& pattern) {
  return {{"pre_tokenizer", {{"type", "Split"}, {"pattern", pattern}, {"behavior", "Isolated"}, {"invert", false}}}};
}

TEST(AHostileTokenizer, IsRefusedForItsSteps) {
  expect_patch_refused({{"normalizer", {{"type", "NFKC"}}}},
                       "normalizer.type: expected NFC, Replace, Prepend or Sequence");
  expect_patch_refused({{"pre_tokenizer", {{"type", "Whitespace"}}}},
                       "expected ByteLevel, Split, Digits, Metaspace or Sequence");
  expect_patch_refused({{"pre_tokenizer", {{"type", 5}}}}, "pre_tokenizer.type: expected a string, got 5");
  expect_patch_refused({{"decoder", "Fuse"}}, "decoder: expected an object, got \"Fuse\"");
  expect_patch_refused(split({{"String", ""}}), "pre_tokenizer.pattern: expected a text that is not empty");
  expect_patch_refused(split({{"Other", "a"}}), "pre_tokenizer.pattern: expected a String or a Regex");
  expect_patch_refused(split({{"Regex", "(a"}}), "pre_tokenizer.pattern: expected a regular expression");
  expect_patch_refused(split({{"Regex", std::string(10000, 'a')}}), "expected an expression of at most 8192 bytes");
  expect_patch_refused(split({{"Regex", "(?:(?:a{0,60000}){0,60000}){0,60000}"}}), "expected a regular expression");
  const json many(65, {{"type", "NFC"}});
  expect_patch_refused({{"normalizer", sequence_of("normalizers", many)}}, "expected at most 64 steps");
  json deep = {{"type", "NFC"}};
  for (int i = 0; i < 40; ++i) deep = sequence_of("normalizers", json::array({deep}));
  expect_patch_refused({{"normalizer", deep}}, "nested at most 32 deep");
}

TEST(AHostileTokenizer, IsRefusedForItsTemplate) {
  const auto with = [](const json& single, int64_t id = 0) {
    return json{{"post_processor",
                 {{"type", "TemplateProcessing"},
                  {"single", single},
                  {"special_tokens", {{"<s>", {{"ids", json::array({id})}}}}}}}};
  };
  const json a = {{"Sequence", {{"id", "A"}}}}, b = {{"Sequence", {{"id", "B"}}}};
  expect_patch_refused(with(json::array()), "post_processor.single: expected a template with sequence A");
  expect_patch_refused(with(json::array({a, a})), "single[1]: expected special tokens and sequence A once");
  expect_patch_refused(with(json::array({b})), "single[0]: expected special tokens and sequence A once");
  for (const int64_t id : {-1, 3}) {  // the vocabulary has three
    expect_patch_refused(with(json::array({{{"SpecialToken", {{"id", "<s>"}}}}, a}), id),
                         "ids[0]: expected an id of the vocabulary, from 0 to 2, got " + std::to_string(id));
  }
  expect_patch_refused(with(json::array({{{"SpecialToken", {{"id", "x"}}}}, a})),
                       "special_tokens.x: expected an object, got null");
}

std::string error_of_text(const json& changes, const std::string& text) {
  json file = small();
  file.merge_patch(changes);
  const TokenizerJson tokenizer = load(file);
  return io::error_of([&] { tokenizer.encode(text); });
}

TEST(AHostileTokenizer, CannotTakeForEverOnAText) {
  const std::string text(100'000, 'a');
  EXPECT_THAT(error_of_text(split({{"Regex", "(a+)+$"}}), text + "b"),
              HasSubstr("expected a pattern that matches within its limits"));
  EXPECT_THAT(error_of_text(split({{"Regex", "(?:a|aa)+$"}}), text + "b"),
              HasSubstr("expected a pattern that matches within its limits"));
  // Each place takes as many steps as there are characters behind it, which is below the limit: 10^11 in all.
  EXPECT_THAT(error_of_text(split({{"Regex", "(?:a(?!x))*[bc]"}}), std::string(500'000, 'a')),
              HasSubstr("expected patterns that take at most 2.0 s"));
  // Words of 22 characters, each of which takes 2^22 steps.
  std::string words;
  for (int i = 0; i < 10'000; ++i) words.append(21, 'a').append("b ");
  const json steps =
      json::array({split({{"Regex", " "}})["pre_tokenizer"], split({{"Regex", "(a+)+$"}})["pre_tokenizer"]});
  EXPECT_THAT(error_of_text({{"pre_tokenizer", sequence_of("pretokenizers", steps)}}, words),
              HasSubstr("expected patterns that take at most"));
}

TEST(AHostileTokenizer, CannotMakeATextGrowForEver) {
  const json twice = {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aa"}};
  const json steps = json(60, twice);
  EXPECT_THAT(error_of_text({{"normalizer", sequence_of("normalizers", steps)}}, "a"),
              HasSubstr("at most 64 bytes of a byte"));
  const json bytes = json(60, {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"use_regex", false}});
  EXPECT_THAT(error_of_text({{"pre_tokenizer", sequence_of("pretokenizers", bytes)}}, "\n"),
              HasSubstr("at most 64 bytes of a byte"));
}

TEST(AHostileTokenizer, MayHaveAMillionMerges) {
  json vocabulary = json::object(), merges = json::array();
  for (int i = 0; i < 1024; ++i)
    vocabulary[std::string{static_cast<char>('a' + i / 32 % 26), static_cast<char>('A' + i % 26)}] = 0;
  int id = 0;
  for (auto& [token, number] : vocabulary.items()) number = id++;
  const json singles = vocabulary;
  for (const auto& [left, unused] : singles.items()) {
    for (const auto& [right, also_unused] : singles.items()) {
      if (vocabulary.emplace(left + right, id).second) ++id;
      merges.push_back({left, right});
    }
  }
  ASSERT_GT(merges.size(), 400'000U);
  json repeated = merges;
  while (repeated.size() < 1'000'000U) repeated.insert(repeated.end(), merges.begin(), merges.end());
  const TokenizerJson tokenizer = load(file_of(vocabulary, repeated));
  EXPECT_EQ(tokenizer.size(), id);
}

}  // namespace
}  // namespace plimsoll::tokenize
