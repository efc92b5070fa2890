#include "plimsoll/serve/json/format.h"

#include <string>
#include <utility>

namespace plimsoll::serve {
namespace {

// Memory of a state that is kept: the row of what follows it, and its stacks.
size_t bytes_of(const JsonState& state) {
  size_t bytes = sizeof(std::array<int32_t, 256>) + sizeof(JsonState);
  for (const JsonStack& stack : state) bytes += sizeof(JsonStack) + stack.size() * sizeof(JsonFrame);
  return bytes;
}

void check_texts(const JsonSchema& schema, const std::bitset<256>& bytes) {
  const auto check = [&](const std::string& text) {
    for (const char byte : text) {
      if (bytes[static_cast<uint8_t>(byte)]) continue;
      throw JsonSchemaError("schema", "expected texts that the model has tokens for, got " + text);
    }
  };
  for (const JsonNode& node : schema.nodes) {
    for (const std::string& value : node.values) check(value);
    for (const JsonProperty& property : node.properties) check(property.key);
  }
}

}  // namespace

JsonFormat::JsonFormat(std::shared_ptr<const TokenTrie> tokens, JsonSchema schema)
    : tokens_(std::move(tokens)), machine_(std::move(schema), tokens_->single_bytes()) {
  check_texts(machine_.schema(), tokens_->single_bytes());
}

JsonState JsonFormat::after(JsonState state, int64_t token) const {
  for (const char byte : tokens_->bytes(token)) state = machine_.next(state, static_cast<uint8_t>(byte));
  return state;
}

size_t JsonFormat::StateHash::operator()(const JsonState& state) const {
  uint64_t hash = 0;
  const auto add = [&](uint64_t value) {
    hash = (hash ^ value) * 0x9E3779B97F4A7C15;
    hash ^= hash >> 29;
  };
  for (const JsonStack& stack : state) {
    add(stack.size());
    for (const JsonFrame& frame : stack) {
      add(static_cast<uint64_t>(frame.node) << 16 | static_cast<uint64_t>(frame.place) << 8 | frame.spaces);
      add(static_cast<uint64_t>(frame.first) << 32 | static_cast<uint32_t>(frame.second));
      add(static_cast<uint64_t>(frame.needed));
    }
  }
  return hash;
}

int32_t JsonFormat::number_of(JsonState state) const {
  if (state.empty()) return kNone;
  const auto [found, is_new] = numbers_.try_emplace(std::move(state), static_cast<int32_t>(states_.size()));
  if (is_new) {
    state_bytes_ += bytes_of(found->first);
    states_.push_back(&found->first);
    next_.emplace_back().fill(kUnknown);
  }
  return found->second;
}

JsonFormat::Step JsonFormat::next(const Step& step, uint8_t byte) const {
  if (step.number == kNone) return {.state = machine_.next(step.state, byte)};
  const auto row = static_cast<size_t>(step.number);
  if (next_[row][byte] == kUnknown) {
    JsonState state = machine_.next(*states_[row], byte);
    if (!state.empty() && !has_room()) return {.state = std::move(state)};
    const int32_t found = number_of(std::move(state));
    next_[row][byte] = found;
  }
  return {.number = next_[row][byte]};
}

TokenMask JsonFormat::find_allowed(int32_t state) const {
  TokenMask mask(static_cast<size_t>(tokens_->size() + 63) / 64);
  std::vector<Step> path(static_cast<size_t>(tokens_->longest()) + 1);  // behind each byte
  path[0].number = state;
  const auto nodes = tokens_->nodes();
  for (size_t i = 0; i < nodes.size();) {
    const TokenTrie::Node& node = nodes[i];
    Step& there = path[node.depth];
    there = next(path[node.depth - size_t{1}], node.byte);
    if (there.number == kNone && there.state.empty()) {
      i = node.end;
      continue;
    }
    for (const uint32_t id : tokens_->ids(node)) set(mask, id, true);
    ++i;
  }
  return mask;
}

std::shared_ptr<const TokenMask> JsonFormat::mask_of(JsonState state) const {
  const int32_t number = number_of(std::move(state));
  if (number == kNone) return std::make_shared<const TokenMask>(static_cast<size_t>(tokens_->size() + 63) / 64);
  std::shared_ptr<const TokenMask>& mask = masks_[number];
  if (mask == nullptr) mask = std::make_shared<const TokenMask>(find_allowed(number));
  return mask;
}

void JsonFormat::forget() const {
  masks_.clear();
  next_.clear();
  states_.clear();
  numbers_.clear();
  state_bytes_ = 0;
}

std::shared_ptr<const TokenMask> JsonFormat::allowed(const JsonState& state) const {
  JsonState key = JsonMachine::within(state, tokens_->longest());
  const std::lock_guard<std::mutex> lock(mutex_);
  const size_t mask_bytes = static_cast<size_t>(tokens_->size()) / 8;
  if (!has_room() || masks_.size() * mask_bytes > kMostMaskBytes) forget();
  try {
    return mask_of(std::move(key));
  } catch (...) {  // no memory: a state may have a number and no row
    forget();
    throw;
  }
}

TokenMask JsonFormat::allowed(const JsonState& state, std::span<const int64_t> ends) const {
  TokenMask mask = *allowed(state);
  for (const int64_t end : ends) {
    if (end >= 0 && end < tokens_->size()) set(mask, end, JsonMachine::is_complete(state));
  }
  return mask;
}

}  // namespace plimsoll::serve
