// GPT-2's alphabet: each byte as one printable character, so that a vocabulary of text can hold any bytes. Bytes that
// are printable in Latin-1 stand for themselves; the others, in their order, are U+0100 and what follows.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace plimsoll::tokenize {

char32_t character_of_byte(uint8_t byte);
std::optional<uint8_t> byte_of_character(char32_t value);

// Each byte's character in UTF-8.
std::string to_byte_alphabet(std::string_view bytes);

}  // namespace plimsoll::tokenize
