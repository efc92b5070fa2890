// The added_tokens of a tokenizer.json: texts that are one token wherever they stand, cut out before all else.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "plimsoll/tokenize/json/normalizer.h"
#include "plimsoll/tokenize/json/piece.h"
#include "plimsoll/tokenize/json/vocabulary.h"

namespace plimsoll::tokenize {

class Fields;

struct AddedToken {
  std::string content;
  uint32_t id = 0;
  bool special = false;                            // left out when decoding without special tokens
  bool single_word = false;                        // only where no word character stands beside it
  bool strips_left = false, strips_right = false;  // takes the spaces beside it along
  bool normalized = false;                         // looked for in the normalized text
  std::string shown;                               // the content, normalized if it is looked for so
};

// A stretch of text, or a token.
struct Segment {
  Piece piece;
  std::optional<uint32_t> id;
};

// Texts, found longest first.
class TextFinder {
 public:
  // Texts are not empty. Returns false if the text was there already.
  bool add(std::string_view text, size_t value);
  bool empty() const { return nodes_ == 0; }

  struct Match {
    Range range;
    size_t value;
  };
  // The first text at `from` or behind, the longest of those that begin there.
  std::optional<Match> next(std::string_view text, size_t from) const;

 private:
  static constexpr uint32_t kRoot = 0;
  std::vector<bool> begins_ = std::vector<bool>(256);  // bytes that a text begins with
  std::unordered_map<uint64_t, uint32_t> children_;    // node << 8 | byte: node
  std::unordered_map<uint32_t, size_t> values_;        // of nodes where a text ends
  uint32_t nodes_ = 0;
};

class AddedTokens {
 public:
  // Reads them from the file. Throws io::Error when an id is not the one that the `tokenizers` library gives the token.
  AddedTokens(const Fields& file, const Vocabulary& vocabulary, const Normalizer& normalizer);

  // Tokens and the text between them; `normalized`: those that are looked for in normalized text, or the others.
  std::vector<Segment> cut(const Piece& piece, bool normalized) const;
  bool any(bool normalized) const { return !finder(normalized).empty(); }

  const AddedToken* find(uint32_t id) const;
  const AddedToken* find(std::string_view content) const;
  // Whether a token that decodes to this text is a special one.
  bool is_special(std::string_view shown) const;
  size_t end() const { return end_; }  // the greatest id and one

 private:
  const TextFinder& finder(bool normalized) const { return normalized ? in_normalized_ : in_raw_; }
  void add(AddedToken token, const std::string& name);

  std::vector<AddedToken> tokens_;
  std::unordered_map<uint32_t, size_t> by_id_;
  std::unordered_map<std::string, size_t> by_content_;
  TextFinder in_raw_, in_normalized_;
  size_t end_ = 0;
};

}  // namespace plimsoll::tokenize
