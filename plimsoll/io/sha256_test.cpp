#include "plimsoll/io/sha256.h"

#include <gtest/gtest.h>

namespace plimsoll::io {
namespace {

// The examples of FIPS 180-4.
TEST(Sha256, MatchesTheStandard) {
  EXPECT_EQ(sha256({}), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256(std::as_bytes(std::span("abc", 3))),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

}  // namespace
}  // namespace plimsoll::io
