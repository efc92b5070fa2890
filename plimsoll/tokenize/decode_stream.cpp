#include "plimsoll/tokenize/decode_stream.h"

#include <span>

namespace plimsoll::tokenize {

std::string DecodeStream::next(int64_t id) {
  ids_.push_back(id);
  const Decoded decoded = tokenizer_.decode_part(ids_, specials_);
  return decoded.complete ? take(decoded) : "";
}

std::string DecodeStream::finish() { return take(tokenizer_.decode_part(ids_, specials_)); }

std::string DecodeStream::take(const Decoded& decoded) {
  const std::span<const int64_t> rest = std::span(ids_).subspan(given_ids_);
  // A wrong byte changes what the whole run decodes to, given text included.
  std::string text = decoded.text.starts_with(given_text_) ? decoded.text.substr(given_text_.size())
                                                           : tokenizer_.decode_part(rest, specials_).text;
  if (text.empty()) return text;
  ids_.erase(ids_.begin(), ids_.begin() + static_cast<int64_t>(given_ids_));
  given_ids_ = ids_.size();
  given_text_ = tokenizer_.decode_part(ids_, specials_).text;
  return text;
}

}  // namespace plimsoll::tokenize
