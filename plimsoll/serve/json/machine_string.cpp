// Strings: characters of UTF-8, and escapes. Escapes of surrogates come in pairs, which are one character.
#include <string_view>
#include <utility>

#include "plimsoll/serve/json/machine.h"

namespace plimsoll::serve {
namespace {

// Bytes of a character that are still to come.
enum Utf8 : int32_t {
  kOne,
  kTwo,
  kThree,
  kTwoAfterE0,  // not below U+0800
  kTwoAfterEd,  // no surrogates
  kThreeAfterF0,
  kThreeAfterF4,  // not beyond U+10FFFF
};

struct Utf8Step {
  uint8_t from, to;
  int32_t next;  // -1: the character is whole
};

constexpr Utf8Step kUtf8Steps[] = {{0x80, 0xBF, -1},   {0x80, 0xBF, kOne}, {0x80, 0xBF, kTwo}, {0xA0, 0xBF, kOne},
                                   {0x80, 0x9F, kOne}, {0x90, 0xBF, kTwo}, {0x80, 0x8F, kTwo}};

// Bytes that follow the first one of a character; -1: no character begins so.
int32_t after_first(uint8_t byte) {
  if (byte >= 0xC2 && byte <= 0xDF) return kOne;
  if (byte == 0xE0) return kTwoAfterE0;
  if (byte == 0xED) return kTwoAfterEd;
  if (byte >= 0xE1 && byte <= 0xEF) return kTwo;
  if (byte == 0xF0) return kThreeAfterF0;
  if (byte >= 0xF1 && byte <= 0xF3) return kThree;
  if (byte == 0xF4) return kThreeAfterF4;
  return -1;
}

constexpr std::string_view kEscaped = "\"\\/bfnrt";

// The next part of \uXXXX.
enum Hex : int32_t {
  kFirstDigit,
  kAfterD,     // D0 to D7: a character; D8 to DB: the first of a pair
  kThreeMore,  // of a character
  kTwoMore,
  kOneMore,
  kPairTwoMore,  // of the first of a pair
  kPairOneMore,
  kPairEscape,
  kPairU,
  kPairD,
  kPairCToF,
};

bool is_hex(uint8_t byte) {
  return (byte >= '0' && byte <= '9') || (byte >= 'a' && byte <= 'f') || (byte >= 'A' && byte <= 'F');
}

// kOneMore's digit ends the escape. -1: the byte may not stand here.
int32_t after_hex(int32_t place, uint8_t byte) {
  const auto lower = static_cast<uint8_t>(byte | 0x20);
  switch (place) {
    case kFirstDigit:
      return !is_hex(byte) ? -1 : lower == 'd' ? kAfterD : kThreeMore;
    case kAfterD:
      if (byte >= '0' && byte <= '7') return kTwoMore;
      return byte == '8' || byte == '9' || lower == 'a' || lower == 'b' ? kPairTwoMore : -1;
    case kThreeMore:
    case kTwoMore:
    case kPairTwoMore:
      return is_hex(byte) ? place + 1 : -1;
    case kPairOneMore:
      return is_hex(byte) ? kPairEscape : -1;
    case kPairEscape:
      return byte == '\\' ? kPairU : -1;
    case kPairU:
      return byte == 'u' ? kPairD : -1;
    case kPairD:
      return lower == 'd' ? kPairCToF : -1;
    case kPairCToF:
      return lower >= 'c' && lower <= 'f' ? kTwoMore : -1;
    default:
      return -1;
  }
}

}  // namespace

void JsonMachine::write_string(JsonStack stack, uint8_t byte, JsonState& out) const {
  JsonFrame& frame = stack.back();
  const auto go = [&](JsonPlace place, int32_t second = 0) {
    frame.place = place;
    frame.second = second;
    out.push_back(std::move(stack));
  };
  if (frame.place == JsonPlace::kQuote) {
    if (byte == '"') go(JsonPlace::kInside);
    return;
  }
  if (frame.place == JsonPlace::kUtf8) {
    const Utf8Step& step = kUtf8Steps[frame.second];
    if (byte < step.from || byte > step.to) return;
    return step.next < 0 ? go(JsonPlace::kInside) : go(JsonPlace::kUtf8, step.next);
  }
  if (frame.place == JsonPlace::kEscape) {
    if (byte == 'u') return go(JsonPlace::kHex, kFirstDigit);
    if (kEscaped.find(static_cast<char>(byte)) != kEscaped.npos) go(JsonPlace::kInside);
    return;
  }
  if (frame.place == JsonPlace::kHex) {
    if (frame.second == kOneMore) return is_hex(byte) ? go(JsonPlace::kInside) : void();
    const int32_t next = after_hex(frame.second, byte);
    if (next >= 0) go(JsonPlace::kHex, next);
    return;
  }
  if (byte == '"') return frame.needed == 0 ? end_value(std::move(stack), out) : void();
  if (byte < 0x20 || frame.first == 0) return;
  if (byte >= 0x80 && (after_first(byte) < 0 || !bytes_[byte])) return;
  if (frame.first > 0) --frame.first;
  if (frame.needed > 0) --frame.needed;
  if (byte == '\\') return go(JsonPlace::kEscape);
  return byte < 0x80 ? go(JsonPlace::kInside) : go(JsonPlace::kUtf8, after_first(byte));
}

}  // namespace plimsoll::serve
