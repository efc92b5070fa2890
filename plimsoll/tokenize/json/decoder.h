// Ways in which a tokenizer.json makes text of tokens: ByteLevel, ByteFallback, Replace, Fuse, Strip, Metaspace, and
// Sequences.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <variant>
#include <vector>

#include "plimsoll/tokenize/json/normalizer.h"
#include "plimsoll/tokenize/json/pre_tokenizer.h"
#include "plimsoll/tokenize/tokenizer.h"

namespace plimsoll::tokenize {

class Decoder {
 public:
  // null: tokens with a space between them. `name` opens the errors.
  Decoder(const nlohmann::json& component, const std::string& name);

  Decoded apply(std::vector<std::string> tokens) const;
  // Bytes that a token adds to the text of others before and behind it.
  std::string bytes_of(std::string token) const;

 private:
  struct ByteLevel {};
  struct ByteFallback {};
  struct Fuse {};
  struct Strip {
    std::string character;
    int64_t begin, end;  // how many at most
  };
  struct Tokens {
    std::vector<std::string> texts;
    PatternTime time;
  };
  // Each returns false if the last tokens may be the beginning of a character.
  static bool apply_step(const ByteLevel& step, Tokens& tokens);
  static bool apply_step(const ByteFallback& step, Tokens& tokens);
  static bool apply_step(const Fuse& step, Tokens& tokens);
  static bool apply_step(const Strip& step, Tokens& tokens);
  static bool apply_step(const Replacement& step, Tokens& tokens);
  static bool apply_step(const Metaspace& step, Tokens& tokens);

  std::vector<std::variant<ByteLevel, ByteFallback, Fuse, Strip, Replacement, Metaspace>> steps_;
  bool joins_with_spaces_ = false;
};

}  // namespace plimsoll::tokenize
