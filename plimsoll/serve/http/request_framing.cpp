#include "plimsoll/serve/http/request_framing.h"

#include <strings.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <string>
#include <string_view>

namespace plimsoll::serve {
namespace {

bool is_length(const std::string& text) {
  constexpr size_t kMostDigits = 18;
  return !text.empty() && text.size() <= kMostDigits && text.find_first_not_of("0123456789") == std::string::npos;
}

// RFC 9110, 5.6.2. A name with a space behind it is another one for httplib, and for some none.
bool is_token(const std::string& text) {
  constexpr std::string_view kSigns = "!#$%&'*+-.^_`|~";
  const auto may_stand = [&](char sign) {
    return (sign >= '0' && sign <= '9') || (sign >= 'a' && sign <= 'z') || (sign >= 'A' && sign <= 'Z') ||
           kSigns.find(sign) != kSigns.npos;
  };
  return !text.empty() && std::ranges::all_of(text, may_stand);
}

}  // namespace

const char* why_endless(const httplib::Headers& headers) {
  for (const auto& [name, value] : headers) {
    if (!is_token(name)) return "expected names of headers without spaces and other signs";
  }
  const auto [length, lengths_end] = headers.equal_range("Content-Length");
  const auto [coding, codings_end] = headers.equal_range("Transfer-Encoding");
  if (coding != codings_end) {
    if (length != lengths_end) return "expected Content-Length or Transfer-Encoding, got both";
    const bool is_chunked = std::next(coding) == codings_end && ::strcasecmp(coding->second.c_str(), "chunked") == 0;
    return is_chunked ? nullptr : "expected the Transfer-Encoding chunked and no other";
  }
  for (auto each = length; each != lengths_end; ++each) {
    if (!is_length(each->second)) return "expected a number of bytes as Content-Length";
    if (each->second != length->second) return "expected one Content-Length, got several that differ";
  }
  return nullptr;
}

bool reads_body(const httplib::Request& request) {
  constexpr std::array<std::string_view, 5> kMethods = {"POST", "PUT", "PATCH", "DELETE", "PRI"};
  return std::ranges::find(kMethods, request.method) != kMethods.end();
}

bool has_body(const httplib::Request& request) {
  return request.has_header("Content-Length") || request.has_header("Transfer-Encoding");
}

}  // namespace plimsoll::serve
