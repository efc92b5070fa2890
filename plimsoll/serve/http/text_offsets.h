// Places in a text, in characters, of the tokens that make it: pieces of one character have the place of the character.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace plimsoll::serve {

class TextOffsets {
 public:
  // The place of the first of these bytes, which come next. Bytes that are no UTF-8 count as the U+FFFD that replaces them.
  int64_t add(std::string_view bytes);

 private:
  int64_t characters_ = 0;  // whole ones
  std::string cut_;         // what has come of the next one
};

}  // namespace plimsoll::serve
