#include "plimsoll/tokenize/json/added_tokens.h"

#include <algorithm>

#include "plimsoll/io/error.h"
#include "plimsoll/tokenize/fields.h"
#include "plimsoll/tokenize/utf8.h"

namespace plimsoll::tokenize {
namespace {

constexpr size_t kMaxTokenBytes = 4096;

AddedToken read_token(const nlohmann::json& object, const std::string& name, const Normalizer& normalizer) {
  const Fields fields(object, name);
  AddedToken token;
  token.content = fields.text("content");
  if (token.content.empty() || token.content.size() > kMaxTokenBytes) {
    fields.refuse("content", io::compose("1 to {} bytes", kMaxTokenBytes));
  }
  token.id = static_cast<uint32_t>(fields.integer("id", kMaxIds));
  token.special = fields.flag("special");
  token.single_word = fields.flag("single_word");
  token.strips_left = fields.flag("lstrip");
  token.strips_right = fields.flag("rstrip");
  token.normalized = fields.flag("normalized");
  token.shown = token.content;
  if (token.normalized) {
    MadeTexts made(token.content.size());
    token.shown = std::string(normalizer.apply({token.content, true}, made).text);
    if (token.shown.empty()) fields.refuse("content", "a text that is not empty when normalized");
  }
  return token;
}

// The place where the spaces before text[end] begin.
size_t begin_of_spaces(std::string_view text, size_t end) {
  while (end > 0) {
    size_t begin = end - 1;
    while (begin > 0 && (static_cast<uint8_t>(text[begin]) & 0xC0) == 0x80) --begin;
    if (!is_space(character_at(text, begin).value)) break;
    end = begin;
  }
  return end;
}

size_t end_of_spaces(std::string_view text, size_t begin) {
  while (begin < text.size()) {
    const Character character = character_at(text, begin);
    if (!is_space(character.value)) break;
    begin += character.bytes;
  }
  return begin;
}

bool is_inside_word(std::string_view text, const Range& range) {
  if (range.end < text.size() && is_word(character_at(text, range.end).value)) return true;
  if (range.begin == 0) return false;
  size_t last = range.begin - 1;
  while (last > 0 && (static_cast<uint8_t>(text[last]) & 0xC0) == 0x80) --last;
  return is_word(character_at(text, last).value);
}

}  // namespace

bool TextFinder::add(std::string_view text, size_t value) {
  uint32_t node = kRoot;
  for (const char byte : text) {
    const auto [child, is_new] = children_.try_emplace(uint64_t{node} << 8 | static_cast<uint8_t>(byte), nodes_ + 1);
    if (is_new) ++nodes_;
    node = child->second;
  }
  begins_[static_cast<uint8_t>(text[0])] = true;
  return values_.try_emplace(node, value).second;
}

std::optional<TextFinder::Match> TextFinder::next(std::string_view text, size_t from) const {
  for (size_t begin = from; begin < text.size(); ++begin) {
    if (!begins_[static_cast<uint8_t>(text[begin])]) continue;
    std::optional<Match> longest;
    uint32_t node = kRoot;
    for (size_t end = begin; end < text.size();) {
      const auto child = children_.find(uint64_t{node} << 8 | static_cast<uint8_t>(text[end++]));
      if (child == children_.end()) break;
      node = child->second;
      if (const auto value = values_.find(node); value != values_.end()) longest = Match{{begin, end}, value->second};
    }
    if (longest) return longest;
  }
  return std::nullopt;
}

AddedTokens::AddedTokens(const Fields& file, const Vocabulary& vocabulary, const Normalizer& normalizer) {
  size_t next_id = vocabulary.count();  // of a token that the vocabulary does not have, as `tokenizers` counts
  if (file.at("added_tokens").is_null()) return;
  file.for_each("added_tokens", [&](const nlohmann::json& object, const std::string& name) {
    AddedToken token = read_token(object, name, normalizer);
    const auto in_vocabulary = vocabulary.find(token.content);
    const size_t expected = in_vocabulary ? *in_vocabulary : next_id++;
    if (token.id != expected) {
      io::fail("{}.id: expected {}, {}, got {}", name, expected,
               in_vocabulary ? "as in the vocabulary" : "the next after the vocabulary", token.id);
    }
    if (!in_vocabulary && vocabulary.contains(token.id)) {
      io::fail("{}.id: expected an id of its own, got {} of the vocabulary's {}", name, token.id,
               shown(std::string(vocabulary.token(token.id))));
    }
    add(std::move(token), name);
  });
}

void AddedTokens::add(AddedToken token, const std::string& name) {
  const size_t place = tokens_.size();
  const bool is_new = by_content_.emplace(token.content, place).second &&
                      (token.normalized ? in_normalized_ : in_raw_).add(token.shown, place);
  if (!is_new) io::fail("{}.content: expected each text once, got {} again", name, shown(token.content));
  by_id_.emplace(token.id, place);
  end_ = std::max<size_t>(end_, token.id + 1);
  tokens_.push_back(std::move(token));
}

std::vector<Segment> AddedTokens::cut(const Piece& piece, bool normalized) const {
  const std::string_view text = piece.text;
  std::vector<Segment> segments;
  size_t done = 0;
  const auto add_text = [&](size_t end) {
    if (done < end) segments.push_back({{text.substr(done, end - done), piece.starts_text && done == 0}, std::nullopt});
  };
  size_t from = 0;
  while (const auto match = finder(normalized).next(text, from)) {
    from = match->range.end;
    const AddedToken& token = tokens_[match->value];
    Range range = match->range;
    if (token.single_word && is_inside_word(text, range)) continue;
    if (token.strips_left) range.begin = begin_of_spaces(text, range.begin);
    if (token.strips_right) range.end = end_of_spaces(text, range.end);
    add_text(range.begin);
    segments.push_back({{}, token.id});
    done = std::max(done, range.end);
  }
  add_text(text.size());
  return segments;
}

const AddedToken* AddedTokens::find(uint32_t id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : &tokens_[found->second];
}

const AddedToken* AddedTokens::find(std::string_view content) const {
  const auto found = by_content_.find(std::string(content));
  return found == by_content_.end() ? nullptr : &tokens_[found->second];
}

bool AddedTokens::is_special(std::string_view shown) const {
  const AddedToken* token = find(shown);
  return token != nullptr && token->special;
}

}  // namespace plimsoll::tokenize
