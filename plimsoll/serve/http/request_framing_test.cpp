#include "plimsoll/serve/http/request_framing.h"

#include <gmock/gmock.h>

namespace plimsoll::serve {
namespace {

using ::testing::HasSubstr;

TEST(RequestFraming, TellsTheEndByOneLengthOrByChunks) {
  const httplib::Headers told[] = {{},
                                   {{"Content-Length", "0"}},
                                   {{"Content-Length", "12"}, {"content-length", "12"}},
                                   {{"Transfer-Encoding", "chunked"}},
                                   {{"transfer-encoding", "Chunked"}, {"X-Any", "a b"}}};
  for (const httplib::Headers& headers : told) EXPECT_EQ(why_endless(headers), nullptr) << why_endless(headers);
}

TEST(RequestFraming, RefusesWhatTwoReadersMayReadInTwoWays) {
  struct Case {
    httplib::Headers headers;
    const char* reason;
  };
  const Case cases[] = {
      {{{"Content-Length", "5"}, {"Transfer-Encoding", "chunked"}}, "got both"},
      {{{"Content-Length", "5"}, {"Content-Length", "6"}}, "got several that differ"},
      {{{"Transfer-Encoding", "gzip, chunked"}}, "chunked and no other"},
      {{{"Transfer-Encoding", "chunked"}, {"Transfer-Encoding", "chunked"}}, "chunked and no other"},
      {{{"Content-Length", "+5"}}, "a number of bytes"},
      {{{"Content-Length", ""}}, "a number of bytes"},
      {{{"Content-Length", "1234567890123456789"}}, "a number of bytes"},
      {{{"Content-Length ", "5"}}, "without spaces"},
  };
  for (const auto& [headers, reason] : cases) {
    const char* const told = why_endless(headers);
    ASSERT_NE(told, nullptr) << reason;
    EXPECT_THAT(told, HasSubstr(reason));
  }
}

TEST(RequestFraming, KnowsTheMethodsWhoseBodyIsRead) {
  httplib::Request request;
  for (const char* method : {"POST", "PUT"}) {
    request.method = method;
    EXPECT_TRUE(reads_body(request)) << method;
  }
  for (const char* method : {"GET", "BREW"}) {
    request.method = method;
    EXPECT_FALSE(reads_body(request)) << method;
  }
  EXPECT_FALSE(has_body(request));
  request.headers.emplace("Content-Length", "3");
  EXPECT_TRUE(has_body(request));
}

}  // namespace
}  // namespace plimsoll::serve
