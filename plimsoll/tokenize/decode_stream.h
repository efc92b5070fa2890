// Ids to text as they come: never half a character, and together what decode() makes of all ids. Where the ids are no
// UTF-8, what was given before the first wrong byte of a run of byte tokens stays given.
#pragma once

#include <string>
#include <vector>

#include "plimsoll/tokenize/tokenizer.h"

namespace plimsoll::tokenize {

class DecodeStream {
 public:
  // The tokenizer has to outlive the stream.
  explicit DecodeStream(const Tokenizer& tokenizer, Specials specials = Specials::kWithout)
      : tokenizer_(tokenizer), specials_(specials) {}

  // The text that this id completes; empty while a character is not whole.
  std::string next(int64_t id);
  // The rest at the end: U+FFFD for a character that was never whole.
  std::string finish();

 private:
  std::string take(const Decoded& decoded);

  const Tokenizer& tokenizer_;
  Specials specials_;
  std::vector<int64_t>
      ids_;                 // those that gave the last text, which what follows may depend on, and those without a text
  size_t given_ids_ = 0;    // how many of them gave it
  std::string given_text_;  // what these decode to
};

}  // namespace plimsoll::tokenize
