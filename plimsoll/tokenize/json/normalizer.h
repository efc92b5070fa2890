// Changes that a tokenizer.json makes to a text before it is cut: NFC, Replace, Prepend, and Sequences of them.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <variant>
#include <vector>

#include "plimsoll/tokenize/json/pattern.h"
#include "plimsoll/tokenize/json/piece.h"

namespace plimsoll::tokenize {

// Each match becomes `content`.
struct Replacement {
  Pattern pattern;
  std::string content;
  std::string apply(std::string_view text, PatternTime& time) const;
};

class Normalizer {
 public:
  // null: the text stays as it is. `name` opens the errors.
  Normalizer(const nlohmann::json& component, const std::string& name);

  Piece apply(Piece piece, MadeTexts& made) const;

 private:
  struct Nfc {};
  struct Prepend {
    std::string text;
  };
  static Piece apply_step(const Nfc& step, Piece piece, MadeTexts& made);
  static Piece apply_step(const Prepend& step, Piece piece, MadeTexts& made);
  static Piece apply_step(const Replacement& step, Piece piece, MadeTexts& made);

  std::vector<std::variant<Nfc, Replacement, Prepend>> steps_;
};

class Fields;
// {"pattern": {"String": ...} or {"Regex": ...}} of a step.
Pattern read_pattern(const Fields& step);
Replacement read_replacement(const Fields& step);

}  // namespace plimsoll::tokenize
