// For tests: spiece.model files made field by field (sentencepiece's src/sentencepiece_model.proto).
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace plimsoll::tokenize {

inline std::string varint(uint64_t value) {
  std::string bytes;
  for (; value > 127; value >>= 7) bytes += static_cast<char>(value | 128);
  return bytes + static_cast<char>(value);
}

inline std::string bytes_field(uint32_t number, std::string_view bytes) {
  return varint(number << 3 | 2) + varint(bytes.size()) + std::string(bytes);
}

inline std::string varint_field(uint32_t number, uint64_t value) { return varint(number << 3) + varint(value); }

inline std::string float_field(uint32_t number, float value) {
  std::string bytes(sizeof(value), '\0');
  std::memcpy(bytes.data(), &value, sizeof(value));
  return varint(number << 3 | 5) + bytes;
}

enum class PieceType : uint8_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

inline std::string piece(std::string_view text, PieceType type = PieceType::kNormal, float score = -1.0F) {
  return bytes_field(1, bytes_field(1, text) + float_field(2, score) + varint_field(3, static_cast<uint64_t>(type)));
}

// pad, </s> and <unk> as T5 has them, and a few letters.
inline std::string first_pieces() {
  std::string bytes =
      piece("<pad>", PieceType::kControl) + piece("</s>", PieceType::kControl) + piece("<unk>", PieceType::kUnknown);
  for (const char* text : {"\xe2\x96\x81", "a", "b", "ab",
                           "\xe2\x96\x81"
                           "a",
                           "c", "d"})
    bytes += piece(text);
  return bytes;
}

inline std::string normalizer(std::string_view charsmap) { return bytes_field(3, bytes_field(2, charsmap)); }
// Without a space in front, and with the text's own spaces.
inline std::string denormalizer(std::string_view charsmap) {
  return bytes_field(5, bytes_field(2, charsmap) + varint_field(3, 0) + varint_field(4, 0) + varint_field(5, 0));
}

}  // namespace plimsoll::tokenize
