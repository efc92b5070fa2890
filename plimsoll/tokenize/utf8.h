// UTF-8 as RFC 3629 defines it: no surrogates, nothing above U+10FFFF, no character in more bytes than it needs.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace plimsoll::tokenize {

struct Character {
  enum class State { kWhole, kBroken, kCut };  // kCut: the text ends before the character does
  char32_t value = 0;                          // of a whole one
  size_t bytes = 0;                            // else the longest part that could begin a character, at least 1
  State state = State::kWhole;
};

// The character that begins at text[place]; place < text.size().
Character character_at(std::string_view text, size_t place);

// U+FFFD, which stands for bytes that are no character.
inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

// Bytes before the first one that is not UTF-8; text.size() if there is none.
size_t valid_bytes(std::string_view text);

void append_character(std::string& text, char32_t value);

// The bytes as text; each longest part that could begin a character, but is none, becomes U+FFFD.
std::string replace_broken(std::string_view bytes);

// Whether more bytes could make a character of the last ones.
bool ends_inside_character(std::string_view bytes);

bool is_space(char32_t value);    // Unicode's White_Space
bool is_numeric(char32_t value);  // general category N
// Unicode's word characters (UTS #18, annex C): Alphabetic, M, Nd, Pc, Join_Control.
bool is_word(char32_t value);

}  // namespace plimsoll::tokenize
