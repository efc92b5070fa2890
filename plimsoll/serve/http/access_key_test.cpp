#include "plimsoll/serve/http/access_key.h"

#include <gtest/gtest.h>

namespace plimsoll::serve {
namespace {

TEST(AccessKey, LetsInWhoHasIt) {
  const AccessKey key("secret");
  for (const char* authorization : {"Bearer secret", "bearer secret", "BEARER secret"}) {
    EXPECT_TRUE(key.lets_in(authorization)) << authorization;
  }
}

TEST(AccessKey, KeepsOutWhoHasAnother) {
  const AccessKey key("secret");
  for (const char* authorization : {"", "secret", "Bearer", "Bearer ", "Bearer secre", "Bearer secret2",
                                    "Bearer Secret", "Bearer  secret", "Basic secret", " Bearer secret"}) {
    EXPECT_FALSE(key.lets_in(authorization)) << authorization;
  }
}

TEST(AccessKey, LetsEverybodyInWithoutOne) {
  const AccessKey key("");
  EXPECT_TRUE(key.lets_in(""));
  EXPECT_TRUE(key.lets_in("Bearer anything"));
}

}  // namespace
}  // namespace plimsoll::serve
