// Byte-pair encoding: a word's characters are tokens; of all pairs of neighbours that the file merges, the one it lists
// first (and of equal ones the leftmost) becomes one token, until no pair is left. n log n for n characters.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "plimsoll/tokenize/json/merges.h"
#include "plimsoll/tokenize/json/vocabulary.h"

namespace plimsoll::tokenize {

class Fields;

// Memory of one encoder, used again for each word.
struct BpeScratch {
  struct Symbol {
    uint32_t id;
    int32_t previous, next;  // -1: none; a symbol that is part of another has itself as next
  };
  struct Candidate {
    uint64_t order;  // rank, then place
    uint32_t left, right, merged;
  };
  std::vector<Symbol> symbols;
  std::vector<Candidate> queue;

  size_t bytes() const { return symbols.capacity() * sizeof(Symbol) + queue.capacity() * sizeof(Candidate); }
};

class Bpe {
 public:
  // Reads the model of a tokenizer.json.
  explicit Bpe(const Fields& model);

  const Vocabulary& vocabulary() const { return vocabulary_; }

  // Appends the ids of one word. `bytes`: the vocabulary has the word's bytes as characters of the byte alphabet.
  void encode(std::string_view word, bool bytes, BpeScratch& scratch, std::vector<int64_t>& ids) const;

 private:
  // The token that stands for characters that the vocabulary does not have.
  struct Unknown {
    uint32_t id = 0;
    bool pending = false;
  };
  void read_merges(const Fields& model);
  uint32_t unknown_id() const;
  std::optional<uint32_t> id_of_character(char32_t value) const;
  void begin(std::string_view word, bool bytes, BpeScratch& scratch) const;
  void add_unknown(std::string_view character, Unknown& unknown, BpeScratch& scratch) const;
  void merge_all(BpeScratch& scratch) const;

  Vocabulary vocabulary_;
  Merges merges_;
  std::vector<int32_t> of_character_;    // ids of characters below kTable; -1: none
  std::array<int32_t, 256> of_byte_{};   // ids of the bytes' characters
  std::array<int32_t, 256> fallback_{};  // ids of <0x00> to <0xFF>; -1: none
  std::optional<std::string> unknown_;   // unk_token
  std::optional<uint32_t> unknown_id_;
  bool fuses_unknown_, falls_back_, takes_whole_words_;
};

}  // namespace plimsoll::tokenize
