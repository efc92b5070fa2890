#include "plimsoll/tokenize/utf8.h"

#include <utf8proc.h>

#include <cstdint>

namespace plimsoll::tokenize {
namespace {

// The first byte of a character of several bytes: how many, and which second bytes make it a legal one.
struct Lead {
  size_t bytes;
  uint8_t lowest, highest;
};

Lead lead_of(uint8_t byte) {
  if (byte < 0xC2 || byte > 0xF4) return {1, 1, 0};  // none
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};  // surrogates follow
  if (byte < 0xF0) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {4, 0x80, 0xBF};
}

}  // namespace

Character character_at(std::string_view text, size_t place) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[place + i]); };
  if (byte(0) < 0x80) return {byte(0), 1, Character::State::kWhole};
  const Lead lead = lead_of(byte(0));
  if (lead.bytes == 1) return {0, 1, Character::State::kBroken};
  char32_t value = byte(0) & (0x7FU >> lead.bytes);
  for (size_t i = 1; i < lead.bytes; ++i) {
    if (place + i == text.size()) return {0, i, Character::State::kCut};
    const bool follows = i == 1 ? byte(1) >= lead.lowest && byte(1) <= lead.highest : (byte(i) & 0xC0) == 0x80;
    if (!follows) return {0, i, Character::State::kBroken};
    value = value << 6 | (byte(i) & 0x3F);
  }
  return {value, lead.bytes, Character::State::kWhole};
}

size_t valid_bytes(std::string_view text) {
  size_t place = 0;
  while (place < text.size()) {
    if (static_cast<uint8_t>(text[place]) < 0x80) {
      ++place;
      continue;
    }
    const Character character = character_at(text, place);
    if (character.state != Character::State::kWhole) break;
    place += character.bytes;
  }
  return place;
}

void append_character(std::string& text, char32_t value) {
  const auto append = [&](char32_t byte) { text += static_cast<char>(byte); };
  if (value < 0x80) {
    append(value);
  } else if (value < 0x800) {
    append(0xC0 | value >> 6);
    append(0x80 | (value & 0x3F));
  } else if (value < 0x10000) {
    append(0xE0 | value >> 12);
    append(0x80 | (value >> 6 & 0x3F));
    append(0x80 | (value & 0x3F));
  } else {
    append(0xF0 | value >> 18);
    append(0x80 | (value >> 12 & 0x3F));
    append(0x80 | (value >> 6 & 0x3F));
    append(0x80 | (value & 0x3F));
  }
}

std::string replace_broken(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  size_t place = 0;
  while (place < bytes.size()) {
    const size_t valid = valid_bytes(bytes.substr(place));
    text += bytes.substr(place, valid);
    place += valid;
    if (place == bytes.size()) break;
    text += kReplacementCharacter;
    place += character_at(bytes, place).bytes;
  }
  return text;
}

bool ends_inside_character(std::string_view bytes) {
  // A character has at most three bytes before its last one.
  for (size_t back = 1; back <= 3 && back <= bytes.size(); ++back) {
    const size_t place = bytes.size() - back;
    if ((static_cast<uint8_t>(bytes[place]) & 0xC0) == 0x80) continue;
    const Character character = character_at(bytes, place);
    return character.state == Character::State::kCut && character.bytes == back;
  }
  return false;
}

bool is_space(char32_t value) {
  return (value >= 0x09 && value <= 0x0D) || value == 0x20 || value == 0x85 || value == 0xA0 || value == 0x1680 ||
         (value >= 0x2000 && value <= 0x200A) || value == 0x2028 || value == 0x2029 || value == 0x202F ||
         value == 0x205F || value == 0x3000;
}

bool is_numeric(char32_t value) {
  if (value < 0x80) return value >= '0' && value <= '9';
  const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(value));
  return category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL || category == UTF8PROC_CATEGORY_NO;
}

bool is_word(char32_t value) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(value))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    case UTF8PROC_CATEGORY_SO:  // circled and squared Latin letters are alphabetic
      return (value >= 0x24B6 && value <= 0x24E9) || (value >= 0x1F130 && value <= 0x1F149) ||
             (value >= 0x1F150 && value <= 0x1F169) || (value >= 0x1F170 && value <= 0x1F189);
    case UTF8PROC_CATEGORY_CF:
      return value == 0x200C || value == 0x200D;  // Join_Control
    default:
      return false;
  }
}

}  // namespace plimsoll::tokenize
