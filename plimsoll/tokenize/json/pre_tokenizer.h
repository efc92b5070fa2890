// Ways in which a tokenizer.json cuts a text into words: ByteLevel, Split, Digits, Metaspace, and Sequences of them.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <variant>
#include <vector>

#include "plimsoll/tokenize/json/piece.h"

namespace plimsoll::tokenize {

enum class PrependScheme { kFirst, kNever, kAlways };

struct Metaspace {
  std::string replacement;  // of a space; one character
  PrependScheme scheme = PrependScheme::kAlways;
  bool splits = true;
};

class Fields;
Metaspace read_metaspace(const Fields& step);

class PreTokenizer {
 public:
  // null: the text is one word. `name` opens the errors.
  PreTokenizer(const nlohmann::json& component, const std::string& name);

  // Whether the words are bytes, whose characters in the byte alphabet the vocabulary has.
  bool gives_bytes() const { return gives_bytes_; }

  // Replaces the pieces by their words.
  void apply(std::vector<Piece>& pieces, MadeTexts& made) const;

 private:
  struct ByteLevel {
    bool adds_space, splits, maps;  // maps: to the byte alphabet here, because another step follows
  };
  struct Digits {
    bool individual;
  };
  using Pieces = std::vector<Piece>;
  void apply_step(const ByteLevel& step, const Pieces& pieces, MadeTexts& made, Pieces& words) const;
  void apply_step(const Split& step, const Pieces& pieces, MadeTexts& made, Pieces& words) const;
  void apply_step(const Digits& step, const Pieces& pieces, MadeTexts& made, Pieces& words) const;
  void apply_step(const Metaspace& step, const Pieces& pieces, MadeTexts& made, Pieces& words) const;

  std::vector<std::variant<ByteLevel, Split, Digits, Metaspace>> steps_;
  bool gives_bytes_ = false;
};

}  // namespace plimsoll::tokenize
