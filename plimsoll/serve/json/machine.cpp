#include "plimsoll/serve/json/machine.h"

#include <algorithm>
#include <string>
#include <utility>

namespace plimsoll::serve {
namespace {

constexpr uint8_t kMostSpaces = 20;         // between two parts of a text
constexpr int32_t kMostDigits = 18;         // of an integer, so that 64 bits hold it, and of a fraction
constexpr int32_t kMostExponentDigits = 2;  // 10^18 * 10^99 is finite as a double

bool is_space(uint8_t byte) { return byte == ' ' || byte == '\n' || byte == '\t'; }
bool is_digit(uint8_t byte) { return byte >= '0' && byte <= '9'; }

// Writes a space, if there may be one here.
bool write_space(JsonFrame& frame, uint8_t byte) {
  if (!is_space(byte) || frame.spaces == kMostSpaces) return false;
  ++frame.spaces;
  return true;
}

// Sorts the stacks, and keeps of those that differ the first ones. What is kept of some of them and others is kept of all.
void keep_first(JsonState& state) {
  std::ranges::sort(state);
  state.erase(std::unique(state.begin(), state.end()), state.end());
  size_t kept = 0, frames = 0;
  while (kept < std::min(state.size(), kMostStacks) && frames + state[kept].size() <= kMostFrames) {
    frames += state[kept++].size();
  }
  state.resize(kept);
}

void move_to(JsonFrame& frame, JsonPlace place) {
  frame.place = place;
  frame.spaces = 0;
}

}  // namespace

JsonMachine::JsonMachine(JsonSchema schema, const std::bitset<256>& bytes)
    : schema_(std::move(schema)), bytes_(bytes) {}

bool JsonMachine::fits(const JsonStack& stack, int32_t node) const {
  return static_cast<int32_t>(stack.size()) + node_of(node).height <= kDeepestJson;
}

std::span<const int32_t> JsonMachine::ways_of(const int32_t& node) const {
  return node_of(node).kind == JsonKind::kChoice ? std::span(node_of(node).alternatives) : std::span(&node, 1);
}

JsonState JsonMachine::start() const {
  JsonState state;
  for (const int32_t each : ways_of(schema_.root)) {
    if (fits({}, each)) state.push_back({frame_of(each)});
  }
  std::ranges::sort(state);
  return state;
}

JsonState JsonMachine::next(const JsonState& state, uint8_t byte) const {
  JsonState result;
  for (const JsonStack& stack : state) {
    if (!stack.empty()) write(stack, byte, result);
    if (result.size() > 4 * kMostStacks) keep_first(result);  // each stack may have gone on in as many ways again
  }
  keep_first(result);
  return result;
}

JsonState JsonMachine::within(JsonState state, int32_t bytes) {
  for (JsonStack& stack : state) {
    for (JsonFrame& frame : stack) {
      switch (frame.place) {
        case JsonPlace::kQuote:
        case JsonPlace::kInside:
        case JsonPlace::kUtf8:
        case JsonPlace::kEscape:
        case JsonPlace::kHex:
          frame.first = std::min(frame.first, bytes);
          frame.needed = std::min(frame.needed, bytes);
          break;
        case JsonPlace::kArray:
        case JsonPlace::kFirstItem:
        case JsonPlace::kItem:
        case JsonPlace::kAfterItem:
          frame.first = std::min(frame.first, bytes);
          frame.second = std::min(frame.second, bytes);
          break;
        case JsonPlace::kValues:
        case JsonPlace::kNumber:
        case JsonPlace::kMinus:
        case JsonPlace::kZero:
        case JsonPlace::kDigits:
        case JsonPlace::kPoint:
        case JsonPlace::kFraction:
        case JsonPlace::kExponent:
        case JsonPlace::kExponentSign:
        case JsonPlace::kExponentDigits:
        case JsonPlace::kObject:
        case JsonPlace::kFirstKey:
        case JsonPlace::kNextKey:
        case JsonPlace::kKey:
        case JsonPlace::kColon:
        case JsonPlace::kValue:
        case JsonPlace::kAfterValue:
          break;
      }
    }
  }
  std::ranges::sort(state);
  state.erase(std::unique(state.begin(), state.end()), state.end());
  return state;
}

JsonFrame JsonMachine::frame_of(int32_t target) const {
  const JsonNode& node = node_of(target);
  JsonFrame frame{.node = target};
  switch (node.kind) {
    case JsonKind::kChoice:  // whose alternatives are entered instead
    case JsonKind::kValues:
      break;
    case JsonKind::kString:
      frame.place = JsonPlace::kQuote;
      frame.first = node.most;
      frame.needed = node.fewest;
      break;
    case JsonKind::kNumber:
    case JsonKind::kInteger:
      frame.place = JsonPlace::kNumber;
      break;
    case JsonKind::kArray:
      frame.place = JsonPlace::kArray;
      frame.first = node.fewest;
      frame.second = node.most;
      break;
    case JsonKind::kObject:
    case JsonKind::kAnyObject:
      frame.place = JsonPlace::kObject;
      break;
  }
  return frame;
}

void JsonMachine::enter(const JsonStack& stack, int32_t target, uint8_t byte, JsonState& out) const {
  for (const int32_t each : ways_of(target)) {
    if (!fits(stack, each)) continue;
    JsonStack entered = stack;
    entered.push_back(frame_of(each));
    write(std::move(entered), byte, out);
  }
}

void JsonMachine::end_value(JsonStack stack, JsonState& out) {
  stack.pop_back();
  out.push_back(std::move(stack));
}

void JsonMachine::write(JsonStack stack, uint8_t byte, JsonState& out) const {
  switch (stack.back().place) {
    case JsonPlace::kValues:
      return write_values(std::move(stack), byte, out);
    case JsonPlace::kQuote:
    case JsonPlace::kInside:
    case JsonPlace::kUtf8:
    case JsonPlace::kEscape:
    case JsonPlace::kHex:
      return write_string(std::move(stack), byte, out);
    case JsonPlace::kNumber:
    case JsonPlace::kMinus:
    case JsonPlace::kZero:
    case JsonPlace::kDigits:
    case JsonPlace::kPoint:
    case JsonPlace::kFraction:
    case JsonPlace::kExponent:
    case JsonPlace::kExponentSign:
    case JsonPlace::kExponentDigits:
      return write_number(std::move(stack), byte, out);
    case JsonPlace::kArray:
    case JsonPlace::kFirstItem:
    case JsonPlace::kItem:
    case JsonPlace::kAfterItem:
      return write_array(std::move(stack), byte, out);
    case JsonPlace::kKey:
      return write_key(std::move(stack), byte, out);
    case JsonPlace::kObject:
    case JsonPlace::kFirstKey:
    case JsonPlace::kNextKey:
    case JsonPlace::kColon:
    case JsonPlace::kValue:
    case JsonPlace::kAfterValue:
      return write_object(std::move(stack), byte, out);
  }
}

void JsonMachine::write_values(JsonStack stack, uint8_t byte, JsonState& out) const {
  JsonFrame& frame = stack.back();
  const std::vector<std::string>& values = node_of(frame).values;
  const auto written = static_cast<size_t>(frame.second);
  const std::string start = values[static_cast<size_t>(frame.first)].substr(0, written) + static_cast<char>(byte);
  const auto first = std::lower_bound(values.begin() + frame.first, values.end(), start);
  if (first == values.end() || !first->starts_with(start)) return;
  const bool ends = first->size() == start.size();
  const auto longer = ends ? first + 1 : first;  // the first that goes on
  if (ends) end_value(stack, out);
  if (longer == values.end() || !longer->starts_with(start)) return;
  frame.first = static_cast<int32_t>(longer - values.begin());
  ++frame.second;
  out.push_back(std::move(stack));
}

void JsonMachine::write_number(JsonStack stack, uint8_t byte, JsonState& out) const {
  JsonFrame& frame = stack.back();
  const bool is_number = node_of(frame).kind == JsonKind::kNumber;
  const JsonPlace place = frame.place;
  const int32_t digits = frame.first;
  const auto go = [&](JsonPlace to) {
    move_to(frame, to);
    frame.first = 0;
    out.push_back(std::move(stack));
  };
  // A digit behind which the number may end. most: digits that may stand there; more_follows: whether others than these may.
  const auto write_digit = [&](JsonPlace to, int32_t most, bool more_follows) {
    const int32_t count = place == to ? digits + 1 : 1;
    if (count > most) return;
    end_value(stack, out);
    move_to(frame, to);
    frame.first = count;
    if (count < most || more_follows) out.push_back(std::move(stack));
  };
  if (place == JsonPlace::kNumber || place == JsonPlace::kMinus) {
    if (byte == '-' && place == JsonPlace::kNumber) return go(JsonPlace::kMinus);
    if (byte == '0') return write_digit(JsonPlace::kZero, 1, is_number);
    if (is_digit(byte)) write_digit(JsonPlace::kDigits, kMostDigits, is_number);
  } else if (is_digit(byte)) {
    if (place == JsonPlace::kZero) return;
    if (place == JsonPlace::kDigits) return write_digit(JsonPlace::kDigits, kMostDigits, is_number);
    const bool is_fraction = place == JsonPlace::kPoint || place == JsonPlace::kFraction;
    if (is_fraction) return write_digit(JsonPlace::kFraction, kMostDigits, true);
    write_digit(JsonPlace::kExponentDigits, kMostExponentDigits, false);
  } else if (place == JsonPlace::kExponent) {
    if (byte == '+' || byte == '-') go(JsonPlace::kExponentSign);
  } else if (place == JsonPlace::kZero || place == JsonPlace::kDigits || place == JsonPlace::kFraction) {
    if (is_number && byte == '.' && place != JsonPlace::kFraction) return go(JsonPlace::kPoint);
    if (is_number && (byte == 'e' || byte == 'E')) go(JsonPlace::kExponent);
  }
}

void JsonMachine::write_array(JsonStack stack, uint8_t byte, JsonState& out) const {
  JsonFrame& frame = stack.back();
  const int32_t element = node_of(frame).element;
  const bool has_room = frame.second != 0 && fits(stack, element);
  if (frame.place == JsonPlace::kArray) {
    if (byte != '[') return;
    move_to(frame, JsonPlace::kFirstItem);
    return out.push_back(std::move(stack));
  }
  if (write_space(frame, byte)) return out.push_back(std::move(stack));
  if (byte == ']') {
    if (frame.first == 0 && frame.place != JsonPlace::kItem) end_value(std::move(stack), out);
    return;
  }
  if (!has_room) return;
  if (frame.place == JsonPlace::kAfterItem) {
    if (byte != ',') return;
    move_to(frame, JsonPlace::kItem);
    return out.push_back(std::move(stack));
  }
  move_to(frame, JsonPlace::kAfterItem);
  frame.first = std::max(frame.first - 1, 0);
  frame.second = std::max(frame.second - 1, -1);
  enter(stack, element, byte, out);
}

// The first property from `from` on that may follow, of those up to the first that must, and whose key begins so; -1: none.
int32_t JsonMachine::next_property(const JsonStack& stack, int32_t from, std::string_view start) const {
  const std::vector<JsonProperty>& properties = node_of(stack.back()).properties;
  for (size_t i = static_cast<size_t>(from); i < properties.size(); ++i) {
    if (properties[i].key.starts_with(start) && fits(stack, properties[i].value)) return static_cast<int32_t>(i);
    if (properties[i].required) break;
  }
  return -1;
}

void JsonMachine::write_object(JsonStack stack, uint8_t byte, JsonState& out) const {
  JsonFrame& frame = stack.back();
  const JsonNode& node = node_of(frame);
  if (frame.place == JsonPlace::kObject || frame.place == JsonPlace::kColon) {
    const bool begins = frame.place == JsonPlace::kObject;
    if (byte != (begins ? '{' : ':')) return;
    move_to(frame, begins ? JsonPlace::kFirstKey : JsonPlace::kValue);
    return out.push_back(std::move(stack));
  }
  if (write_space(frame, byte)) return out.push_back(std::move(stack));
  const bool is_any = node.kind == JsonKind::kAnyObject;
  if (frame.place == JsonPlace::kValue) {
    const auto property = static_cast<size_t>(frame.first);
    const int32_t value = is_any ? node.element : node.properties[property].value;
    move_to(frame, JsonPlace::kAfterValue);
    if (!is_any) ++frame.first;
    return enter(stack, value, byte, out);
  }
  if (byte == '}') {
    const auto rest = node.properties.begin() + frame.first;
    const bool misses = std::any_of(rest, node.properties.end(), [](const auto& each) { return each.required; });
    if (!misses && frame.place != JsonPlace::kNextKey) end_value(std::move(stack), out);
    return;
  }
  if (byte != (frame.place == JsonPlace::kAfterValue ? ',' : '"')) return;
  const int32_t property = is_any ? -1 : next_property(stack, frame.first, "");
  if (is_any ? !fits(stack, node.element) : property < 0) return;
  if (frame.place == JsonPlace::kAfterValue) {
    move_to(frame, JsonPlace::kNextKey);
    return out.push_back(std::move(stack));
  }
  move_to(frame, JsonPlace::kColon);
  if (is_any) return enter(stack, schema_.string, byte, out);
  const int32_t object = frame.node;
  stack.push_back({.node = object, .place = JsonPlace::kKey, .first = property, .second = 1});
  out.push_back(std::move(stack));
}

void JsonMachine::write_key(JsonStack stack, uint8_t byte, JsonState& out) const {
  const JsonFrame key = stack.back();
  stack.pop_back();
  JsonFrame& object = stack.back();
  const std::vector<JsonProperty>& properties = node_of(object).properties;
  const auto written = static_cast<size_t>(key.second);
  const std::string start = properties[static_cast<size_t>(key.first)].key.substr(0, written) + static_cast<char>(byte);
  const int32_t found = next_property(stack, key.first, start);
  if (found < 0) return;
  if (properties[static_cast<size_t>(found)].key.size() == start.size()) {
    object.first = found;
  } else {
    stack.push_back({.node = key.node, .place = JsonPlace::kKey, .first = found, .second = key.second + 1});
  }
  out.push_back(std::move(stack));
}

}  // namespace plimsoll::serve
