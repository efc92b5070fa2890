#include "plimsoll/tokenize/byte_tokenizer.h"

#include <algorithm>

#include "plimsoll/tokenize/utf8.h"

namespace plimsoll::tokenize {
namespace {

int64_t id_of(char byte) { return static_cast<unsigned char>(byte); }
bool is_byte(int64_t id) { return id >= 0 && id < kByteVocabulary; }

}  // namespace

std::vector<int64_t> ByteTokenizer::encode(std::string_view text, Specials) const {
  std::vector<int64_t> ids(text.size());
  std::transform(text.begin(), text.end(), ids.begin(), id_of);
  return ids;
}

Decoded ByteTokenizer::decode_part(std::span<const int64_t> ids, Specials) const {
  std::string bytes;
  for (const int64_t id : ids) {
    if (is_byte(id)) bytes += decode_byte(id);
  }
  return {replace_broken(bytes), !ends_inside_character(bytes)};
}

std::string ByteTokenizer::bytes_of(int64_t id) const { return is_byte(id) ? std::string(1, decode_byte(id)) : ""; }

std::optional<int64_t> ByteTokenizer::token_to_id(std::string_view token) const {
  return token.size() == 1 ? std::optional(id_of(token[0])) : std::nullopt;
}

std::optional<std::string> ByteTokenizer::id_to_token(int64_t id) const {
  return is_byte(id) ? std::optional(std::string(1, decode_byte(id))) : std::nullopt;
}

}  // namespace plimsoll::tokenize
