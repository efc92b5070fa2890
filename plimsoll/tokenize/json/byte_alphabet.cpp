#include "plimsoll/tokenize/json/byte_alphabet.h"

#include <array>

#include "plimsoll/tokenize/utf8.h"

namespace plimsoll::tokenize {
namespace {

constexpr size_t kBytes = 256;
constexpr char32_t kFirstSubstitute = 0x100;

constexpr bool stands_for_itself(size_t byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

constexpr std::array<char32_t, kBytes> make_characters() {
  std::array<char32_t, kBytes> characters{};
  char32_t substitute = kFirstSubstitute;
  for (size_t byte = 0; byte < kBytes; ++byte) {
    characters[byte] = stands_for_itself(byte) ? static_cast<char32_t>(byte) : substitute++;
  }
  return characters;
}

constexpr auto kCharacters = make_characters();
constexpr char32_t kEnd = kCharacters[0xAD] + 1;  // the last byte that has a substitute

constexpr std::array<int16_t, kEnd> make_bytes() {
  std::array<int16_t, kEnd> bytes{};
  bytes.fill(-1);
  for (size_t byte = 0; byte < kBytes; ++byte) bytes[kCharacters[byte]] = static_cast<int16_t>(byte);
  return bytes;
}

constexpr auto kByteOf = make_bytes();

}  // namespace

char32_t character_of_byte(uint8_t byte) { return kCharacters[byte]; }

std::optional<uint8_t> byte_of_character(char32_t value) {
  if (value >= kEnd || kByteOf[value] < 0) return std::nullopt;
  return static_cast<uint8_t>(kByteOf[value]);
}

std::string to_byte_alphabet(std::string_view bytes) {
  std::string text;
  text.reserve(2 * bytes.size());
  for (const char byte : bytes) append_character(text, kCharacters[static_cast<uint8_t>(byte)]);
  return text;
}

}  // namespace plimsoll::tokenize
