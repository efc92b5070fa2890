// Texts of single tokens, as each stands behind those before it: by itself, a tokenizer of words leaves out the space that
// begins a token.
#pragma once

#include <cstdint>
#include <optional>

#include "plimsoll/tokenize/tokenizer.h"

namespace plimsoll::tokenize {

class TokenTexts {
 public:
  // The tokenizer has to outlive the texts.
  explicit TokenTexts(const Tokenizer& tokenizer) : tokenizer_(&tokenizer) {}

  // The text of a token that comes next.
  Decoded of(int64_t id, Specials specials) const;
  // Bytes of a token that comes next: of its text, or its own where they are no whole characters. Those of all tokens are the
  // bytes of their text.
  std::string bytes_of(int64_t id, Specials specials) const;
  // The token has come.
  void follow(int64_t id);

 private:
  const Tokenizer* tokenizer_;
  std::optional<int64_t> last_;  // of the tokens that have come, without special ones
};

}  // namespace plimsoll::tokenize
