#include "plimsoll/tokenize/json/pre_tokenizer.h"

#include <algorithm>

#include "plimsoll/io/error.h"
#include "plimsoll/tokenize/fields.h"
#include "plimsoll/tokenize/json/byte_alphabet.h"
#include "plimsoll/tokenize/json/normalizer.h"
#include "plimsoll/tokenize/utf8.h"

namespace plimsoll::tokenize {
namespace {

// GPT-2's words (github.com/openai/gpt-2, src/encoder.py).
const Split& gpt2_words() {
  static const Split words{
      Pattern::regular(R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)", "ByteLevel"),
      SplitBehavior::kIsolated, false};
  return words;
}

SplitBehavior read_behavior(const Fields& step) {
  const std::string behavior = step.text("behavior");
  if (behavior == "Removed") return SplitBehavior::kRemoved;
  if (behavior == "Isolated") return SplitBehavior::kIsolated;
  if (behavior == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (behavior == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (behavior == "Contiguous") return SplitBehavior::kContiguous;
  step.refuse("behavior", "Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous");
}

PrependScheme read_scheme(const Fields& step) {
  const std::string scheme = step.text_or_none("prepend_scheme").value_or("always");
  if (scheme == "first") return PrependScheme::kFirst;
  if (scheme == "never") return PrependScheme::kNever;
  if (scheme == "always") return PrependScheme::kAlways;
  step.refuse("prepend_scheme", "first, never or always");
}

void split_piece(const Split& split, const Piece& piece, MadeTexts& made, std::vector<Piece>& words) {
  std::vector<Range> matches;
  split.pattern.find(piece.text, matches, made.time);
  std::vector<Part> parts = parts_of(matches, piece.text.size());
  if (split.inverted) {
    for (Part& part : parts) part.is_match = !part.is_match;
  }
  append_pieces(piece, parts, split.behavior, words);
}

std::vector<Range> numbers_in(std::string_view text) {
  std::vector<Range> numbers;
  for (size_t place = 0; place < text.size();) {
    const Character character = character_at(text, place);
    if (is_numeric(character.value)) numbers.push_back({place, place + character.bytes});
    place += character.bytes;
  }
  return numbers;
}

std::vector<Range> places_of(std::string_view what, std::string_view text) {
  std::vector<Range> places;
  for (size_t place = text.find(what); place != text.npos; place = text.find(what, place + what.size())) {
    places.push_back({place, place + what.size()});
  }
  return places;
}

}  // namespace

Metaspace read_metaspace(const Fields& step) {
  Metaspace metaspace;
  append_character(metaspace.replacement, step.character("replacement"));
  metaspace.scheme = read_scheme(step);
  metaspace.splits = step.flag("split", true);
  if (!step.flag("add_prefix_space", true)) {  // how older files say "never"
    if (metaspace.scheme != PrependScheme::kNever && !step.at("prepend_scheme").is_null()) {
      step.refuse("prepend_scheme", "never, as add_prefix_space is false");
    }
    metaspace.scheme = PrependScheme::kNever;
  }
  return metaspace;
}

PreTokenizer::PreTokenizer(const nlohmann::json& component, const std::string& name) {
  for_each_step(component, name, "pretokenizers", [&](const Fields& step, const std::string& type) {
    if (type == "ByteLevel") {
      steps_.emplace_back(ByteLevel{step.flag("add_prefix_space"), step.flag("use_regex", true), true});
    } else if (type == "Split") {
      steps_.emplace_back(Split{read_pattern(step), read_behavior(step), step.flag("invert")});
    } else if (type == "Digits") {
      steps_.emplace_back(Digits{step.flag("individual_digits")});
    } else if (type == "Metaspace") {
      steps_.emplace_back(read_metaspace(step));
    } else {
      step.refuse("type", "ByteLevel, Split, Digits, Metaspace or Sequence");
    }
  });
  if (!steps_.empty() && std::holds_alternative<ByteLevel>(steps_.back())) {
    std::get<ByteLevel>(steps_.back()).maps = false;
    gives_bytes_ = true;
  }
}

void PreTokenizer::apply_step(const ByteLevel& step, const Pieces& pieces, MadeTexts& made, Pieces& words) const {
  for (Piece piece : pieces) {
    if (step.adds_space && !piece.text.starts_with(' ')) piece.text = made.keep(std::string(1, ' ').append(piece.text));
    if (step.splits) {
      split_piece(gpt2_words(), piece, made, words);
    } else {
      words.push_back(piece);
    }
  }
  if (!step.maps) return;
  for (Piece& word : words) word.text = made.keep(to_byte_alphabet(word.text));
}

void PreTokenizer::apply_step(const Split& step, const Pieces& pieces, MadeTexts& made, Pieces& words) const {
  for (const Piece& piece : pieces) split_piece(step, piece, made, words);
}

void PreTokenizer::apply_step(const Digits& step, const Pieces& pieces, MadeTexts&, Pieces& words) const {
  const SplitBehavior behavior = step.individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous;
  for (const Piece& piece : pieces) {
    const std::vector<Range> numbers = numbers_in(piece.text);
    if (numbers.empty()) {
      words.push_back(piece);
    } else {
      append_pieces(piece, parts_of(numbers, piece.text.size()), behavior, words);
    }
  }
}

void PreTokenizer::apply_step(const Metaspace& step, const Pieces& pieces, MadeTexts& made, Pieces& words) const {
  for (Piece piece : pieces) {
    std::string text;
    for (const char byte : piece.text) byte == ' ' ? text += step.replacement : text += byte;
    const bool may_prepend =
        step.scheme == PrependScheme::kAlways || (step.scheme == PrependScheme::kFirst && piece.starts_text);
    if (may_prepend && !text.starts_with(step.replacement)) text.insert(0, step.replacement);
    piece.text = made.keep(std::move(text));
    if (step.splits) {
      append_pieces(piece, parts_of(places_of(step.replacement, piece.text), piece.text.size()),
                    SplitBehavior::kMergedWithNext, words);
    } else {
      words.push_back(piece);
    }
  }
}

void PreTokenizer::apply(std::vector<Piece>& pieces, MadeTexts& made) const {
  std::vector<Piece> words;
  for (const auto& any : steps_) {
    words.clear();
    std::visit([&](const auto& step) { apply_step(step, pieces, made, words); }, any);
    pieces.swap(words);
  }
}

}  // namespace plimsoll::tokenize
