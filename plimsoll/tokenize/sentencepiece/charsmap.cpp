#include "plimsoll/tokenize/sentencepiece/charsmap.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "plimsoll/io/error.h"

namespace plimsoll::tokenize {
namespace {

constexpr uint32_t kLabels = 256;
constexpr int kMaxMatches = 32;                        // Normalizer::kMaxTrieResultsSize
constexpr size_t kMaxCharsmapBytes = size_t{1} << 23;  // nmt_nfkc_cf, the largest of sentencepiece's own, has 0.25 MB

bool has_leaf(uint32_t unit) { return (unit >> 8 & 1) != 0; }
uint32_t label(uint32_t unit) { return unit & (uint32_t{1} << 31 | 0xff); }
uint32_t offset(uint32_t unit) { return unit >> 10 << ((unit & uint32_t{1} << 9) >> 6); }
uint32_t value(uint32_t unit) { return unit & ~(uint32_t{1} << 31); }

// Visits every place that some text leads to, each once, children before parents.
class Walk {
 public:
  Walk(const std::vector<uint32_t>& units, size_t replacements, const std::string& name)
      : units_(units), replacements_(replacements), name_(name), matches_(units.size(), kNew) {}

  void check() {
    enter(0);
    while (!open_.empty()) {
      Place& place = open_.back();
      if (place.next == kLabels) {
        leave();
        continue;
      }
      const uint32_t child = place.begin ^ place.next;
      if (label(units_[child]) == place.next++) enter(child);
    }
  }

 private:
  // Place where the children of a unit begin. Units that share their children share it.
  struct Place {
    uint32_t begin;
    uint32_t next = 0;  // label of the child that is looked at next
    int most = 0;       // matches from here on, on the best path so far
  };

  // Values in matches_ of places that are not done.
  static constexpr int8_t kNew = -1, kOpen = -2;

  void enter(uint32_t unit) {
    const uint32_t begin = unit ^ offset(units_[unit]);
    if ((begin | (kLabels - 1)) >= units_.size()) {
      io::fail("{}: precompiled_charsmap: expected offsets within {} units, got one to unit {}", name_, units_.size(),
               begin);
    }
    if (unit != 0 && has_leaf(units_[unit]) && value(units_[begin]) >= replacements_) {
      io::fail("{}: precompiled_charsmap: expected values within {} bytes of replacements, got {}", name_,
               replacements_, value(units_[begin]));
    }
    if (matches_[begin] == kOpen) io::fail("{}: precompiled_charsmap: expected a trie without loops, got one", name_);
    if (matches_[begin] == kNew) {
      matches_[begin] = kOpen;
      open_.push_back({.begin = begin});
      entered_.push_back(unit);
    } else {
      count(unit, matches_[begin]);
    }
  }

  void leave() {
    const Place place = open_.back();
    const uint32_t unit = entered_.back();
    open_.pop_back();
    entered_.pop_back();
    matches_[place.begin] = static_cast<int8_t>(place.most);
    count(unit, place.most);
  }

  // Adds a child with its matches behind it to the place that is open.
  void count(uint32_t unit, int behind) {
    const int matches = behind + (unit != 0 && has_leaf(units_[unit]) ? 1 : 0);
    if (matches > kMaxMatches) {
      io::fail("{}: precompiled_charsmap: expected at most {} matches in a row, got more", name_, kMaxMatches);
    }
    if (!open_.empty()) open_.back().most = std::max(open_.back().most, matches);
  }

  const std::vector<uint32_t>& units_;
  const size_t replacements_;  // their bytes
  const std::string& name_;
  std::vector<int8_t> matches_;    // by place: the most matches from there on
  std::vector<Place> open_;        // from the root to the place that is looked at
  std::vector<uint32_t> entered_;  // the unit through which each of them was entered
};

// The library's time grows with the square of what it does not know in a text.
constexpr size_t kMaxReplacementBytes = 256;  // NFKC's longest has 33

size_t longest_replacement(std::string_view replacements, const std::string& name) {
  size_t longest = 0;
  while (!replacements.empty()) {
    const size_t size = replacements.find('\0');
    longest = std::max(longest, size);
    replacements.remove_prefix(size + 1);
  }
  if (longest > kMaxReplacementBytes) {
    io::fail("{}: precompiled_charsmap: expected replacements of at most {} bytes, got one of {}", name,
             kMaxReplacementBytes, longest);
  }
  return longest;
}

}  // namespace

size_t check_charsmap(std::string_view charsmap, const std::string& name) {
  if (charsmap.size() > kMaxCharsmapBytes) {
    io::fail("{}: precompiled_charsmap: expected at most {} bytes, got {}", name, kMaxCharsmapBytes, charsmap.size());
  }
  uint32_t trie_bytes = 0;
  if (charsmap.size() < sizeof(trie_bytes)) io::fail("{}: precompiled_charsmap: expected the bytes of a trie", name);
  std::memcpy(&trie_bytes, charsmap.data(), sizeof(trie_bytes));
  charsmap.remove_prefix(sizeof(trie_bytes));
  if (trie_bytes == 0 || trie_bytes % sizeof(uint32_t) != 0 || trie_bytes > charsmap.size()) {
    io::fail("{}: precompiled_charsmap: expected a trie of whole units within {} bytes, got {}", name, charsmap.size(),
             trie_bytes);
  }
  const std::string_view replacements = charsmap.substr(trie_bytes);
  if (!replacements.ends_with('\0')) {
    io::fail("{}: precompiled_charsmap: expected replacements that end with a zero byte, got none or others", name);
  }
  std::vector<uint32_t> units(trie_bytes / sizeof(uint32_t));
  std::memcpy(units.data(), charsmap.data(), trie_bytes);
  Walk(units, replacements.size(), name).check();
  return longest_replacement(replacements, name);
}

}  // namespace plimsoll::tokenize
