#include "plimsoll/tokenize/json/bpe.h"

#include <algorithm>

#include "plimsoll/io/error.h"
#include "plimsoll/tokenize/fields.h"
#include "plimsoll/tokenize/json/byte_alphabet.h"
#include "plimsoll/tokenize/utf8.h"

namespace plimsoll::tokenize {
namespace {

constexpr char32_t kTable = 0x3100;  // alphabets and signs; the rest is looked up in the vocabulary

Vocabulary read_vocabulary(const Fields& model) {
  const nlohmann::json& tokens = model.at("vocab");
  if (!tokens.is_object()) model.refuse("vocab", "an object {token: id}");
  Vocabulary vocabulary;
  for (const auto& [token, id] : tokens.items()) {
    const bool in_range = id.is_number_unsigned() && id.get<uint64_t>() < static_cast<uint64_t>(kMaxIds);
    if (!in_range) {
      io::fail("{}: token {}: expected an id from 0 to {}, got {}", model.name_of("vocab"), shown(token), kMaxIds - 1,
               shown(id));
    }
    const auto number = id.get<uint32_t>();
    if (vocabulary.contains(number)) {
      io::fail("{}: expected each id once, got {} for {} and for {}", model.name_of("vocab"), number,
               shown(std::string(vocabulary.token(number))), shown(token));
    }
    vocabulary.add(token, number);
  }
  return vocabulary;
}

void refuse_what_changes_symbols(const Fields& model) {
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!model.text_or_none(key).value_or("").empty()) model.refuse(key, "none");
  }
  const nlohmann::json& dropout = model.at("dropout");
  if (!dropout.is_null() && dropout != 0) model.refuse("dropout", "none");
}

// {"a", "b"} of "a b" or ["a", "b"].
struct Pair {
  std::string_view left, right;
};

Pair read_pair(const nlohmann::json& merge, const std::string& name) {
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
    return {merge[0].get_ref<const std::string&>(), merge[1].get_ref<const std::string&>()};
  }
  if (merge.is_string()) {
    const std::string_view text = merge.get_ref<const std::string&>();
    const size_t space = text.find(' ');
    if (space != text.npos && text.find(' ', space + 1) == text.npos)
      return {text.substr(0, space), text.substr(space + 1)};
  }
  io::fail("{}: expected two tokens, \"a b\" or [\"a\", \"b\"], got {}", name, shown(merge));
}

}  // namespace

Bpe::Bpe(const Fields& model)
    : vocabulary_(read_vocabulary(model)),
      merges_(model.at("merges").size()),
      of_character_(kTable, -1),
      unknown_(model.text_or_none("unk_token")),
      fuses_unknown_(model.flag("fuse_unk", false)),
      falls_back_(model.flag("byte_fallback", false)),
      takes_whole_words_(model.flag("ignore_merges", false)) {
  refuse_what_changes_symbols(model);
  read_merges(model);
  const auto id_or_none = [&](std::string_view token) {
    const auto id = vocabulary_.find(token);
    return id ? static_cast<int32_t>(*id) : -1;
  };
  for (char32_t value = 0; value < kTable; ++value) {
    std::string character;
    append_character(character, value);
    of_character_[value] = id_or_none(character);
  }
  for (size_t byte = 0; byte < of_byte_.size(); ++byte) {
    of_byte_[byte] = of_character_[character_of_byte(static_cast<uint8_t>(byte))];
    fallback_[byte] = id_or_none(io::compose("<0x{:02X}>", byte));
  }
  if (unknown_) unknown_id_ = vocabulary_.find(*unknown_);
}

void Bpe::read_merges(const Fields& model) {
  uint32_t rank = 0;
  model.for_each("merges", [&](const nlohmann::json& merge, const std::string& name) {
    if (merge.is_string() && merge.get_ref<const std::string&>().starts_with("#version")) return;
    const Pair pair = read_pair(merge, name);
    const auto id_of = [&](std::string_view token) {
      const auto id = vocabulary_.find(token);
      if (!id) io::fail("{}: expected tokens of the vocabulary, got {}", name, shown(std::string(token)));
      return *id;
    };
    const uint32_t left = id_of(pair.left), right = id_of(pair.right);
    merges_.add(left, right, {rank++, id_of(std::string(pair.left) + std::string(pair.right))});
  });
}

uint32_t Bpe::unknown_id() const {
  if (!unknown_id_)
    io::fail("tokenizer: expected unk_token {} in the vocabulary, which a character of this text needs",
             shown(*unknown_));
  return *unknown_id_;
}

std::optional<uint32_t> Bpe::id_of_character(char32_t value) const {
  if (value < kTable) {
    return of_character_[value] < 0 ? std::nullopt : std::optional(static_cast<uint32_t>(of_character_[value]));
  }
  std::string character;
  append_character(character, value);
  return vocabulary_.find(character);
}

namespace {

void append(BpeScratch& scratch, uint32_t id) {
  const auto place = static_cast<int32_t>(scratch.symbols.size());
  if (place > 0) scratch.symbols.back().next = place;
  scratch.symbols.push_back({id, place - 1, -1});
}

}  // namespace

// As `tokenizers` does it: an unknown character waits for a known one, and bytes do not end its waiting.
void Bpe::add_unknown(std::string_view character, Unknown& unknown, BpeScratch& scratch) const {
  const auto has_fallback = [&](char byte) { return fallback_[static_cast<uint8_t>(byte)] >= 0; };
  if (falls_back_ && std::all_of(character.begin(), character.end(), has_fallback)) {
    for (const char byte : character) append(scratch, static_cast<uint32_t>(fallback_[static_cast<uint8_t>(byte)]));
    return;
  }
  if (!unknown_) return;  // the character is lost
  if (unknown.pending && !fuses_unknown_) append(scratch, unknown.id);
  unknown = {unknown_id(), true};
}

void Bpe::begin(std::string_view word, bool bytes, BpeScratch& scratch) const {
  scratch.symbols.clear();
  Unknown unknown;
  const auto add = [&](std::optional<uint32_t> id, std::string_view character) {
    if (!id) return add_unknown(character, unknown, scratch);
    if (unknown.pending) append(scratch, unknown.id);
    unknown.pending = false;
    append(scratch, *id);
  };
  if (bytes) {
    for (const char byte : word) {
      const int32_t id = of_byte_[static_cast<uint8_t>(byte)];
      id >= 0 ? add(static_cast<uint32_t>(id), {}) : add(std::nullopt, to_byte_alphabet({&byte, 1}));
    }
  } else {
    for (size_t place = 0; place < word.size();) {
      const Character character = character_at(word, place);
      add(id_of_character(character.value), word.substr(place, character.bytes));
      place += character.bytes;
    }
  }
  if (unknown.pending) append(scratch, unknown.id);
}

void Bpe::merge_all(BpeScratch& scratch) const {
  std::vector<BpeScratch::Symbol>& symbols = scratch.symbols;
  std::vector<BpeScratch::Candidate>& queue = scratch.queue;
  const auto later = [](const auto& a, const auto& b) { return a.order > b.order; };
  const auto candidate_at = [&](int32_t place, BpeScratch::Candidate& candidate) {
    const auto& left = symbols[static_cast<size_t>(place)];
    const uint32_t right = symbols[static_cast<size_t>(left.next)].id;
    const Merge* merge = merges_.find(left.id, right);
    if (merge != nullptr) {
      candidate = {uint64_t{merge->rank} << 32 | static_cast<uint32_t>(place), left.id, right, merge->id};
    }
    return merge != nullptr;
  };
  queue.clear();
  BpeScratch::Candidate candidate{};
  for (size_t place = 0; place + 1 < symbols.size(); ++place) {
    if (candidate_at(static_cast<int32_t>(place), candidate)) queue.push_back(candidate);
  }
  std::make_heap(queue.begin(), queue.end(), later);
  const auto push = [&](int32_t place) {
    if (!candidate_at(place, candidate)) return;
    queue.push_back(candidate);
    std::push_heap(queue.begin(), queue.end(), later);
  };
  while (!queue.empty()) {
    std::pop_heap(queue.begin(), queue.end(), later);
    const BpeScratch::Candidate top = queue.back();
    queue.pop_back();
    const auto place = static_cast<int32_t>(top.order & UINT32_MAX);
    auto& symbol = symbols[static_cast<size_t>(place)];
    if (symbol.next < 0 || symbol.next == place) continue;
    auto& right = symbols[static_cast<size_t>(symbol.next)];
    if (symbol.id != top.left || right.id != top.right) {
      // The pair that stands here now may become the same token; `tokenizers` merges it at this turn.
      const Merge* merge = merges_.find(symbol.id, right.id);
      if (merge == nullptr || merge->id != top.merged) continue;
    }
    const int32_t gone = symbol.next;
    symbol.id = top.merged;
    symbol.next = right.next;
    if (right.next >= 0) symbols[static_cast<size_t>(right.next)].previous = place;
    right.next = gone;
    if (symbol.previous >= 0) push(symbol.previous);
    if (symbol.next >= 0) push(place);
  }
}

void Bpe::encode(std::string_view word, bool bytes, BpeScratch& scratch, std::vector<int64_t>& ids) const {
  if (word.empty()) return;
  if (takes_whole_words_) {
    const auto whole = bytes ? vocabulary_.find(to_byte_alphabet(word)) : vocabulary_.find(word);
    if (whole) return ids.push_back(*whole);
  }
  begin(word, bytes, scratch);
  if (scratch.symbols.empty()) return;
  merge_all(scratch);
  for (int32_t place = 0; place >= 0; place = scratch.symbols[static_cast<size_t>(place)].next) {
    ids.push_back(scratch.symbols[static_cast<size_t>(place)].id);
  }
}

}  // namespace plimsoll::tokenize
