#include "plimsoll/serve/http/text_offsets.h"

#include "plimsoll/tokenize/utf8.h"

namespace plimsoll::serve {

int64_t TextOffsets::add(std::string_view bytes) {
  const size_t begin = cut_.size();
  cut_ += bytes;
  int64_t offset = characters_;
  size_t place = 0;
  while (place < cut_.size()) {
    if (place <= begin) offset = characters_;
    const tokenize::Character character = tokenize::character_at(cut_, place);
    if (character.state == tokenize::Character::State::kCut) break;
    place += character.bytes;
    ++characters_;
  }
  cut_.erase(0, place);
  return offset;
}

}  // namespace plimsoll::serve
