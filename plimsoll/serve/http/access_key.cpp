#include "plimsoll/serve/http/access_key.h"

#include <algorithm>
#include <span>
#include <string_view>

#include "plimsoll/io/sha256.h"

namespace plimsoll::serve {
namespace {

std::string digest_of(const std::string& text) { return io::sha256(std::as_bytes(std::span(text))); }

// Whether both are the same, in a time that does not tell where they differ.
bool are_same_digests(const std::string& a, const std::string& b) {
  unsigned different = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) different |= static_cast<unsigned char>(a[i] ^ b[i]);
  return different == 0;
}

// The key of a header Authorization; empty: it has none. The scheme may be written in any case (RFC 9110, 11.1).
std::string key_of(const std::string& authorization) {
  constexpr std::string_view kScheme = "bearer ";
  const auto is_same = [](char a, char b) { return (a >= 'A' && a <= 'Z' ? a - 'A' + 'a' : a) == b; };
  const bool has_key = std::ranges::equal(authorization.substr(0, kScheme.size()), kScheme, is_same);
  return has_key ? authorization.substr(kScheme.size()) : "";
}

}  // namespace

AccessKey::AccessKey(const std::string& key) : digest_(key.empty() ? "" : digest_of(key)) {}

bool AccessKey::lets_in(const std::string& authorization) const {
  return digest_.empty() || are_same_digests(digest_of(key_of(authorization)), digest_);
}

}  // namespace plimsoll::serve
