// The texts that a response_format allows, token by token. Many requests may share one, and its masks.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "plimsoll/serve/json/machine.h"
#include "plimsoll/serve/json/token_trie.h"

namespace plimsoll::serve {

using TokenMask = std::vector<uint64_t>;  // a bit an id

inline bool is_in(const TokenMask& mask, int64_t id) {
  return (mask[static_cast<size_t>(id) / 64] >> (id % 64) & 1) != 0;
}

inline void set(TokenMask& mask, int64_t id, bool value) {
  const uint64_t bit = uint64_t{1} << (id % 64);
  uint64_t& word = mask[static_cast<size_t>(id) / 64];
  word = value ? word | bit : word & ~bit;
}

// Safe to use from several threads.
class JsonFormat {
 public:
  // Throws JsonSchemaError for a text of the schema that the tokens cannot write.
  JsonFormat(std::shared_ptr<const TokenTrie> tokens, JsonSchema schema);

  JsonState start() const { return machine_.start(); }
  // The state behind a token; empty if it may not follow.
  JsonState after(JsonState state, int64_t token) const;
  // The tokens that may follow, at least one unless the text must end.
  std::shared_ptr<const TokenMask> allowed(const JsonState& state) const;
  // The same, with the tokens that end a text where it is complete. An end that is no token is left out.
  TokenMask allowed(const JsonState& state, std::span<const int64_t> ends) const;

  const TokenTrie& tokens() const { return *tokens_; }
  const JsonMachine& machine() const { return machine_; }

 private:
  struct StateHash {
    size_t operator()(const JsonState& state) const;
  };
  static constexpr int32_t kUnknown = -2, kNone = -1;
  static constexpr size_t kMostStateBytes = 16 << 20, kMostMaskBytes = 16 << 20;  // that are kept

  // A state on the way through the tokens: one that has a number, or where no more are kept its own.
  struct Step {
    int32_t number = kNone;
    JsonState state = {};
  };

  bool has_room() const { return state_bytes_ < kMostStateBytes; }
  void forget() const;  // all of what is kept
  int32_t number_of(JsonState state) const;
  Step next(const Step& step, uint8_t byte) const;
  TokenMask find_allowed(int32_t state) const;
  std::shared_ptr<const TokenMask> mask_of(JsonState state) const;

  const std::shared_ptr<const TokenTrie> tokens_;
  const JsonMachine machine_;

  // States by numbers, what each byte makes of them, and their masks: found when they are first asked for, forgotten when
  // they are too many.
  mutable std::mutex mutex_;
  mutable std::unordered_map<JsonState, int32_t, StateHash> numbers_;
  mutable std::vector<const JsonState*> states_;
  mutable std::vector<std::array<int32_t, 256>> next_;
  mutable size_t state_bytes_ = 0;
  mutable std::unordered_map<int32_t, std::shared_ptr<const TokenMask>> masks_;
};

}  // namespace plimsoll::serve
