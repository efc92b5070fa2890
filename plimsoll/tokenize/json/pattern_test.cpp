#include "plimsoll/tokenize/json/pattern.h"

#include <gmock/gmock.h>

#include "plimsoll/io/error_testing.h"
#include "plimsoll/tokenize/json/piece.h"

namespace plimsoll::tokenize {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::vector<std::string> matches_of(const Pattern& pattern, const std::string& text) {
  std::vector<Range> matches;
  PatternTime time(text.size());
  pattern.find(text, matches, time);
  std::vector<std::string> texts;
  for (const Range& match : matches) texts.push_back(text.substr(match.begin, match.end - match.begin));
  return texts;
}

std::vector<std::string> matches_of(const std::string& expression, const std::string& text) {
  return matches_of(Pattern::regular(expression, "pattern"), text);
}

TEST(APattern, FindsALiteralWithoutOverlaps) {
  EXPECT_THAT(matches_of(Pattern::literal("a.a", "pattern"), "a.a.a aba a.a"), ElementsAre("a.a", "a.a"));
}

TEST(APattern, FindsLettersAndNumbersOfAllScripts) {
  EXPECT_THAT(matches_of(R"(\p{L}+|\p{N}{1,3})", "Füchse 狐狸 12345 Ⅷ"),
              ElementsAre("Füchse", "狐狸", "123", "45", "Ⅷ"));
}

TEST(APattern, FindsEmptyMatchesButNotBehindAnother) {
  EXPECT_THAT(matches_of("x*", "axé"), ElementsAre("", "x", ""));
  EXPECT_THAT(matches_of(R"((?=(\d{3})+(?!\d)))", "1234567"), ElementsAre("", ""));
}

TEST(APattern, FindsTheSameFarBehindItsFirstAttempt) {
  const std::string text = std::string(1000, '-') + std::string("é") + std::string(700, '-') + "x";
  EXPECT_THAT(matches_of("x|é", text), ElementsAre("é", "x"));
}

TEST(APattern, HasOnigurumasClasses) {
  // U+180E is a space to PCRE2; ² and marks are word characters to Oniguruma alone.
  EXPECT_THAT(matches_of(R"(\s)", "a\u180e\u3000"), ElementsAre("\u3000"));
  EXPECT_THAT(matches_of(R"(\w+)", "x\u00b2\u0301 y"), ElementsAre("x\u00b2\u0301", "y"));
  EXPECT_THAT(matches_of(R"([^\S\n]+)", "a \t\n b"), ElementsAre(" \t", " "));
  EXPECT_THAT(matches_of(R"(\h+)", "xAF09 "), ElementsAre("AF09"));
  EXPECT_THAT(matches_of(R"(\bx\b)", "x ²x x²"), ElementsAre("x"));
  EXPECT_THAT(matches_of("^b$", "a\nb\nc"), ElementsAre("b"));
  EXPECT_THAT(matches_of(".+", "a\nb"), ElementsAre("a", "b"));
  // The ideographic comma belongs to no script, and to Han by its extensions.
  EXPECT_THAT(matches_of(R"(\p{Han}|\p{^Latin}b)", "狐、b"), ElementsAre("狐", "、b"));
}

TEST(APattern, RefusesWhatOnigurumaReadsInAnotherWay) {
  for (const char* expression :
       {"[a-z&&[b]]", "[[:alpha:]]", "[a[b]]",  "[]a]",   "(?<name>a)", "(?R)",  "(?m:a)", "a(?i)b",
        "(*UTF)a",    "a{1,2}+",     "a{2}?",   "a{,2}",  R"(\1)",      R"(\K)", R"(\R)",  R"(\X)",
        R"(\Qa\E)",   R"([\W])",     R"(\xE9)", R"(\pL)", R"(\p{L&})",  "[a",    "\\"}) {
    EXPECT_THAT(io::error_of([&] { Pattern::regular(expression, "pattern"); }),
                HasSubstr("pattern: expected an expression that means the same to Oniguruma and to PCRE2"))
        << expression;
  }
}

std::vector<std::string> split(const std::string& text, SplitBehavior behavior) {
  std::vector<Range> matches;
  PatternTime time(text.size());
  Pattern::literal("-", "pattern").find(text, matches, time);
  std::vector<Piece> pieces;
  append_pieces({text, true}, parts_of(matches, text.size()), behavior, pieces);
  std::vector<std::string> texts;
  for (const Piece& piece : pieces) texts.emplace_back(piece.text);
  return texts;
}

TEST(ASplit, DoesWithMatchesWhatItsBehaviorSays) {
  const std::string text = "-ab--c-";
  EXPECT_THAT(split(text, SplitBehavior::kRemoved), ElementsAre("ab", "c"));
  EXPECT_THAT(split(text, SplitBehavior::kIsolated), ElementsAre("-", "ab", "-", "-", "c", "-"));
  EXPECT_THAT(split(text, SplitBehavior::kMergedWithPrevious), ElementsAre("-", "ab-", "-", "c-"));
  EXPECT_THAT(split(text, SplitBehavior::kMergedWithNext), ElementsAre("-ab", "-", "-c", "-"));
  EXPECT_THAT(split(text, SplitBehavior::kContiguous), ElementsAre("-", "ab", "--", "c", "-"));
  EXPECT_THAT(split("", SplitBehavior::kIsolated), IsEmpty());
}

}  // namespace
}  // namespace plimsoll::tokenize
