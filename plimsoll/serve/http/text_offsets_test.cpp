#include "plimsoll/serve/http/text_offsets.h"

#include <gtest/gtest.h>

#include <vector>

namespace plimsoll::serve {
namespace {

std::vector<int64_t> offsets_of(const std::vector<std::string>& tokens) {
  TextOffsets offsets;
  std::vector<int64_t> result;
  for (const std::string& token : tokens) result.push_back(offsets.add(token));
  return result;
}

using Offsets = std::vector<int64_t>;

TEST(TextOffsets, CountCharactersAndNotBytes) {
  EXPECT_EQ(offsets_of({"a", "\u00e9\u00e9", "b", "\U0001F496", "c"}), (Offsets{0, 1, 3, 4, 5}));
}

TEST(TextOffsets, PiecesOfACharacterShareItsPlace) {
  EXPECT_EQ(offsets_of({"a", "\xF0\x9F", "\x92", "\x96", "b"}), (Offsets{0, 1, 1, 1, 2}));
  EXPECT_EQ(offsets_of({"a\xF0\x9F", "\x92\x96 b\xC3", "\xA9", "c"}), (Offsets{0, 1, 4, 5}));
}

TEST(TextOffsets, ATokenWithoutBytesHasThePlaceOfTheNext) {
  EXPECT_EQ(offsets_of({"", "a", "", "\xC3", "", "\xA9", ""}), (Offsets{0, 0, 1, 1, 1, 1, 2}));
}

TEST(TextOffsets, BrokenBytesCountAsWhatReplacesThem) {
  EXPECT_EQ(offsets_of({"\xF0\x9F", "a", "\x92", "\x96", "b"}), (Offsets{0, 1, 2, 3, 4}));
  EXPECT_EQ(offsets_of({"\xC3", "\xC3", "\xA9", "b"}), (Offsets{0, 1, 1, 2}));
}

}  // namespace
}  // namespace plimsoll::serve
