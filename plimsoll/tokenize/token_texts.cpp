#include "plimsoll/tokenize/token_texts.h"

#include <span>
#include <string>

#include "plimsoll/tokenize/utf8.h"

namespace plimsoll::tokenize {

Decoded TokenTexts::of(int64_t id, Specials specials) const {
  const int64_t both[] = {last_.value_or(0), id};
  Decoded decoded = tokenizer_->decode_part(std::span(both).last(1), specials);
  if (!last_) return decoded;
  const std::string first = tokenizer_->decode_part(std::span(both).first(1), specials).text;
  const std::string text = tokenizer_->decode_part(both, specials).text;
  if (text.starts_with(first)) decoded.text = text.substr(first.size());
  return decoded;
}

std::string TokenTexts::bytes_of(int64_t id, Specials specials) const {
  const std::string own = tokenizer_->part_bytes_of(id);
  std::string text = of(id, specials).text;
  const bool is_text = valid_bytes(own) == own.size() && text.find(kReplacementCharacter) == text.npos;
  return own.empty() || is_text ? text : own;
}

void TokenTexts::follow(int64_t id) {
  if (!tokenizer_->id_to_token(id)) return;
  const int64_t alone[] = {id};
  const bool is_special =
      tokenizer_->decode_part(alone, Specials::kWith).text != tokenizer_->decode_part(alone, Specials::kWithout).text;
  if (!is_special) last_ = id;
}

}  // namespace plimsoll::tokenize
