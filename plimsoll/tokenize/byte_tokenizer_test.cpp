#include "plimsoll/tokenize/byte_tokenizer.h"

#include <gtest/gtest.h>

namespace plimsoll::tokenize {
namespace {

TEST(AByteTokenizer, RoundTripsEveryByte) {
  std::string bytes;
  for (int i = 0; i < 256; ++i) bytes += static_cast<char>(i);
  const std::vector<int64_t> ids = ByteTokenizer().encode(bytes);
  ASSERT_EQ(ids.size(), bytes.size());
  for (size_t i = 0; i < bytes.size(); ++i) {
    EXPECT_EQ(ids[i], static_cast<int64_t>(i));
    EXPECT_EQ(decode_byte(ids[i]), bytes[i]);
  }
}

TEST(AByteTokenizer, GivesUtf8AndLeavesOutWhatIsNoByte) {
  const std::vector<int64_t> ids = {256, 0xE2, 0x82, -1, 0xAC, 0xFF, 'a'};
  EXPECT_EQ(ByteTokenizer().decode_part(ids, Specials::kWithout).text,
            "\xE2\x82\xAC\xEF\xBF\xBD"
            "a");
}

}  // namespace
}  // namespace plimsoll::tokenize
