// Text as bytes: an id is a byte, the vocabulary has 256. Loses nothing, whatever the encoding.
#pragma once

#include "plimsoll/tokenize/tokenizer.h"

namespace plimsoll::tokenize {

inline constexpr int64_t kByteVocabulary = 256;

// The byte of an id in [0, 256).
constexpr char decode_byte(int64_t id) { return static_cast<char>(static_cast<unsigned char>(id)); }

// No token is special, and any bytes are a text. What ids decode to has U+FFFD where they are no UTF-8.
class ByteTokenizer final : public Tokenizer {
 public:
  int64_t size() const override { return kByteVocabulary; }
  std::vector<int64_t> encode(std::string_view text, Specials specials = Specials::kWith) const override;
  Decoded decode_part(std::span<const int64_t> ids, Specials specials) const override;
  std::string bytes_of(int64_t id) const override;
  std::optional<int64_t> token_to_id(std::string_view token) const override;
  std::optional<std::string> id_to_token(int64_t id) const override;
  std::optional<int64_t> bos() const override { return std::nullopt; }
  std::optional<int64_t> eos() const override { return std::nullopt; }
};

}  // namespace plimsoll::tokenize
