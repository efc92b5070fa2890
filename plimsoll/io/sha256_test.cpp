#include "plimsoll/io/sha256.h"

#include <gtest/gtest.h>

#include <vector>

namespace plimsoll::io {
namespace {

// The examples of FIPS 180-4.
TEST(Sha256, MatchesTheStandard) {
  EXPECT_EQ(sha256({}), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256(std::as_bytes(std::span("abc", 3))),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(FileDigest, HasADigestForEachPart) {
  std::vector<std::byte> bytes(kDigestedBytes + 3);
  for (size_t i = 0; i < bytes.size(); i += 4093) bytes[i] = static_cast<std::byte>(i / 4093);
  const std::span<const std::byte> all(bytes);
  const std::vector<std::string> expected = {sha256(all.first(kDigestedBytes)), sha256(all.subspan(kDigestedBytes))};
  FileDigester digester;
  size_t begin = 0;
  for (const size_t end : {size_t{5}, kDigestedBytes - 1, kDigestedBytes + 2, bytes.size()}) {
    digester.add(all.subspan(begin, end - begin));
    begin = end;
  }
  EXPECT_EQ(digester.digest(), (FileDigest{.bytes = bytes.size(), .sha256 = expected}));
  EXPECT_EQ(digest_of(""), FileDigest{});
  EXPECT_EQ(digest_of("abc").sha256, std::vector{sha256(std::as_bytes(std::span("abc", 3)))});
}

}  // namespace
}  // namespace plimsoll::io
