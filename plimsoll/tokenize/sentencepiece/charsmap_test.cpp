#include "plimsoll/tokenize/sentencepiece/charsmap.h"

#include <gmock/gmock.h>

#include <random>

#include "plimsoll/io/error.h"
#include "plimsoll/tokenize/sentencepiece/charsmap_testing.h"

namespace plimsoll::tokenize::charsmap_test {
namespace {

using testing::HasSubstr;

const std::string kReplacements = std::string("a\0bcd\0", 6) + std::string("\0", 1);
const std::map<std::string, uint32_t> kKeys = {{"A", 0}, {"BC", 2}, {"BCD", 6}, {"\xff\xfe", 2}};

std::string refusal_of(const std::string& charsmap) {
  try {
    check_charsmap(charsmap, "m");
  } catch (const io::Error& error) {
    return error.what();
  }
  return "";
}

bool is_accepted(const std::vector<uint32_t>& units, std::string_view replacements) {
  return refusal_of(charsmap_of(units, replacements)).empty();
}

// The unit that the byte leads to from the root.
uint32_t& child_of_root(std::vector<uint32_t>& units, unsigned char byte) { return units[units[0] >> 10 ^ byte]; }

TEST(Charsmap, ItsLongestReplacementIsKnown) {
  const std::vector<uint32_t> units = DoubleArrayBuilder().build(kKeys);
  EXPECT_EQ(check_charsmap(charsmap_of(units, kReplacements), "m"), 3);
  EXPECT_THAT(walk(units, "BCDE").values, testing::ElementsAre(2, 6));
}

TEST(Charsmap, HeaderHasToFit) {
  const std::vector<uint32_t> units = DoubleArrayBuilder().build(kKeys);
  const std::string good = charsmap_of(units, kReplacements);
  EXPECT_THAT(refusal_of("abc"), HasSubstr("expected the bytes of a trie"));
  for (const uint32_t bytes : {0u, 1u, 1023u, 1026u, static_cast<uint32_t>(good.size() - 3), 0xffffffffu}) {
    EXPECT_THAT(refusal_of(bytes_of({bytes}) + good.substr(4)), HasSubstr("expected a trie of whole units")) << bytes;
  }
  EXPECT_THAT(refusal_of(charsmap_of(units, "")), HasSubstr("end with a zero byte"));
  EXPECT_THAT(refusal_of(good + "open"), HasSubstr("end with a zero byte"));
  EXPECT_THAT(refusal_of(std::string(size_t{1} << 24, '\0')), HasSubstr("expected at most 8388608 bytes"));
}

TEST(Charsmap, OffsetsStayInTheArray) {
  std::vector<uint32_t> units = DoubleArrayBuilder().build(kKeys);
  child_of_root(units, 'B') |= 1u << 30;
  EXPECT_THAT(refusal_of(charsmap_of(units, kReplacements)), HasSubstr("expected offsets within 256 units"));
  units = DoubleArrayBuilder().build(kKeys);
  units[0] |= 1u << 9;  // 256 units each
  EXPECT_THAT(refusal_of(charsmap_of(units, kReplacements)), HasSubstr("expected offsets within 256 units"));
}

TEST(Charsmap, EveryByteStaysInTheArray) {
  const std::vector<uint32_t> units = DoubleArrayBuilder().build(kKeys);
  for (const size_t size : {1, 100, 255}) {
    const std::vector<uint32_t> cut(units.begin(), units.begin() + static_cast<ptrdiff_t>(size));
    EXPECT_THAT(refusal_of(charsmap_of(cut, kReplacements)), HasSubstr("expected offsets within")) << size;
  }
}

TEST(Charsmap, ValuesStayInTheReplacements) {
  std::map<std::string, uint32_t> keys = kKeys;
  keys["X"] = static_cast<uint32_t>(kReplacements.size());
  EXPECT_THAT(refusal_of(charsmap_of(DoubleArrayBuilder().build(keys), kReplacements)),
              HasSubstr("expected values within 7 bytes of replacements, got 7"));
  keys["X"] = 0x7fffffff;
  EXPECT_FALSE(is_accepted(DoubleArrayBuilder().build(keys), kReplacements));
  keys["X"] = static_cast<uint32_t>(kReplacements.size()) - 1;
  EXPECT_TRUE(is_accepted(DoubleArrayBuilder().build(keys), kReplacements));
}

TEST(Charsmap, ReplacementsAreShort) {
  const std::vector<uint32_t> units = DoubleArrayBuilder().build(kKeys);
  EXPECT_TRUE(is_accepted(units, kReplacements + std::string(256, 'x') + '\0'));
  EXPECT_THAT(refusal_of(charsmap_of(units, kReplacements + std::string(257, 'x') + '\0')),
              HasSubstr("at most 256 bytes, got one of 257"));
}

TEST(Charsmap, LoopsAreRefused) {
  std::vector<uint32_t> units = DoubleArrayBuilder().build(kKeys);
  const uint32_t begin = units[0] >> 10, place = begin ^ 'B';
  units[place] = 'B' | (place ^ begin) << 10;  // back to the children of the root
  EXPECT_THAT(refusal_of(charsmap_of(units, kReplacements)), HasSubstr("without loops"));
}

TEST(Charsmap, AsManyMatchesAsTheLibraryHasRoomForAreAccepted) {
  std::map<std::string, uint32_t> keys;
  for (size_t size = 1; size <= 32; ++size) keys[std::string(size, 'a')] = 0;
  keys[std::string(40, 'b')] = 0;
  EXPECT_TRUE(is_accepted(DoubleArrayBuilder().build(keys), kReplacements));
  keys[std::string(33, 'a')] = 0;
  EXPECT_THAT(refusal_of(charsmap_of(DoubleArrayBuilder().build(keys), kReplacements)),
              HasSubstr("expected at most 32 matches"));
}

TEST(Charsmap, MatchesAreCountedThroughSharedUnits) {
  std::map<std::string, uint32_t> keys;
  for (size_t size = 1; size <= 20; ++size) keys[std::string(size, 'a')] = 0;
  for (size_t size = 1; size <= 20; ++size) keys[std::string(size, 'b')] = 0;
  std::vector<uint32_t> units = DoubleArrayBuilder().build(keys);
  EXPECT_TRUE(is_accepted(units, kReplacements));
  uint32_t place = 0;  // the last of the "b"s goes on where the first "a" does
  for (int i = 0; i < 20; ++i) place = (place ^ units[place] >> 10) ^ 'b';
  const uint32_t first = child_of_root(units, 'a');
  const uint32_t first_place = units[0] >> 10 ^ 'a';
  units[place] = 'b' | kLeafFollows | (place ^ first_place ^ first >> 10) << 10;
  EXPECT_THAT(refusal_of(charsmap_of(units, kReplacements)), HasSubstr("expected at most 32 matches"));
}

std::string random_text(std::mt19937_64& random, std::string_view letters, size_t longest) {
  std::string text(random() % longest + 1, '\0');
  for (char& letter : text) letter = letters.empty() ? static_cast<char>(random()) : letters[random() % letters.size()];
  return text;
}

TEST(Charsmap, WhatATrainerWritesIsAccepted) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 200; ++round) {
    std::map<std::string, uint32_t> keys;
    for (uint64_t i = random() % 60; i-- > 0;) {
      std::string key = random_text(random, round % 2 == 0 ? "abc" : "", 6);
      std::erase(key, '\0');
      if (!key.empty()) keys[key] = static_cast<uint32_t>(random() % kReplacements.size());
    }
    const std::vector<uint32_t> units = DoubleArrayBuilder().build(keys);
    ASSERT_EQ(refusal_of(charsmap_of(units, kReplacements)), "");
    for (const auto& [key, value] : keys) ASSERT_EQ(walk(units, key).values.back(), value);
  }
}

TEST(Charsmap, NoTextLeadsOutOfAnAcceptedOne) {
  std::mt19937_64 random(2);
  int accepted = 0, harmful = 0;
  for (int round = 0; round < 20000; ++round) {
    std::vector<uint32_t> units = DoubleArrayBuilder().build(kKeys);
    for (uint64_t i = random() % 4 + 1; i-- > 0;) {
      uint32_t& unit = units[random() % units.size()];
      if (random() % 2 == 0) {
        unit ^= 1u << random() % 32;
      } else {
        unit = static_cast<uint32_t>(random());
      }
    }
    const bool good = is_accepted(units, kReplacements);
    accepted += good ? 1 : 0;
    for (int text = 0; text < 20; ++text) {
      const PrefixWalk found = walk(units, random_text(random, text % 2 == 0 ? "ABCD\xff\xfe" : "", 40));
      const bool bad = found.left_the_array || found.values.size() > 32 ||
                       std::any_of(found.values.begin(), found.values.end(),
                                   [](uint32_t value) { return value >= kReplacements.size(); });
      harmful += bad ? 1 : 0;
      ASSERT_FALSE(good && bad) << "round " << round;
    }
  }
  EXPECT_GT(accepted, 1000);
  EXPECT_GT(harmful, 1000);
}

}  // namespace
}  // namespace plimsoll::tokenize::charsmap_test
