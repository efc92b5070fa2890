// The bytes that may follow the beginning of a JSON text: a machine with a stack of the values that are open. Where a
// schema leaves several ways open, it follows them all at once, or the first of very many. Every beginning that it lets
// through can be completed.
#pragma once

#include <bitset>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "plimsoll/serve/json/schema.h"

namespace plimsoll::serve {

// The place inside a value.
enum class JsonPlace : uint8_t {
  kValues,  // first: the first of the values that begin so; second: bytes written
  kQuote,   // of a string: before it
  kInside,  // first: characters that there is room for, or -1
  kUtf8,    // second: Utf8
  kEscape,
  kHex,     // second: Hex
  kNumber,  // before it
  kMinus,   // what stands last of a number
  kZero,
  kDigits,  // first: how many
  kPoint,
  kFraction,  // first: digits
  kExponent,
  kExponentSign,
  kExponentDigits,  // first: how many
  kArray,           // before it; first: items that it needs yet, second: items that it has room for, or -1
  kFirstItem,
  kItem,
  kAfterItem,
  kObject,  // before it; first: the next property
  kFirstKey,
  kNextKey,
  kKey,  // first: the first of the properties that begin so, second: bytes written
  kColon,
  kValue,
  kAfterValue,
};

struct JsonFrame {
  int32_t node = 0;
  JsonPlace place = JsonPlace::kValues;
  uint8_t spaces = 0;  // written here
  int32_t first = 0, second = 0;
  int32_t needed = 0;  // of a string: characters that it needs yet

  auto operator<=>(const JsonFrame&) const = default;
};

using JsonStack = std::vector<JsonFrame>;  // innermost last; empty: the text is complete
using JsonState = std::vector<JsonStack>;  // distinct, in order; empty: no JSON begins so

// Ways that next() follows at once, and frames of all their stacks: any of them alone could be completed, and without the
// others some texts of the schema are not written.
inline constexpr size_t kMostStacks = 128, kMostFrames = 2048;

class JsonMachine {
 public:
  // bytes: those that a text may have. All of ASCII from 0x20 to 0x7E and of 0x80 to 0xBF are among them.
  JsonMachine(JsonSchema schema, const std::bitset<256>& bytes);

  JsonState start() const;
  JsonState next(const JsonState& state, uint8_t byte) const;

  // A text may end here.
  static bool is_complete(const JsonState& state) { return !state.empty() && state.front().empty(); }
  // And must.
  static bool is_ended(const JsonState& state) { return is_complete(state) && state.size() == 1; }
  // A state that allows the same next `bytes` bytes, the same one for many.
  static JsonState within(JsonState state, int32_t bytes);

  const JsonSchema& schema() const { return schema_; }

 private:
  const JsonNode& node_of(const JsonFrame& frame) const { return schema_.nodes[static_cast<size_t>(frame.node)]; }
  const JsonNode& node_of(int32_t node) const { return schema_.nodes[static_cast<size_t>(node)]; }
  bool fits(const JsonStack& stack, int32_t node) const;
  std::span<const int32_t> ways_of(const int32_t& node) const;  // the alternatives of a choice, or the node
  int32_t next_property(const JsonStack& stack, int32_t from, std::string_view start) const;

  JsonFrame frame_of(int32_t node) const;  // before its value

  // Each adds to `out` what the stack becomes.
  void enter(const JsonStack& stack, int32_t node, uint8_t byte, JsonState& out) const;  // and writes the byte
  static void end_value(JsonStack stack, JsonState& out);
  void write(JsonStack stack, uint8_t byte, JsonState& out) const;
  void write_values(JsonStack stack, uint8_t byte, JsonState& out) const;
  void write_string(JsonStack stack, uint8_t byte, JsonState& out) const;
  void write_number(JsonStack stack, uint8_t byte, JsonState& out) const;
  void write_array(JsonStack stack, uint8_t byte, JsonState& out) const;
  void write_object(JsonStack stack, uint8_t byte, JsonState& out) const;
  void write_key(JsonStack stack, uint8_t byte, JsonState& out) const;

  const JsonSchema schema_;
  const std::bitset<256> bytes_;
};

}  // namespace plimsoll::serve
