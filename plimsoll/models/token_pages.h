// Keys and values of many texts in one memory, in pages: each has those of so many tokens, of all layers. Texts may have
// pages in common; which text has which is the caller's to say.
#pragma once

#include <cstdint>

#include "plimsoll/models/token_cache.h"

namespace plimsoll::models {

inline constexpr int64_t kPageTokens = 32;

constexpr int64_t pages_of(int64_t tokens) { return (tokens + kPageTokens - 1) / kPageTokens; }

class TokenPages {
 public:
  // For tokens as `like` has them, one or more. The memory is taken from the system as pages are written.
  TokenPages(TokenCache& like, int64_t pages);
  static int64_t page_bytes(TokenCache& like);

  // A text without tokens and pages; TokenCache::set_pages() gives it some.
  TokenCache empty_text() const { return text_; }

 private:
  TokenCache text_;
};

}  // namespace plimsoll::models
