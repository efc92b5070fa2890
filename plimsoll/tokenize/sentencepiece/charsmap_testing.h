// For tests: charsmaps as sentencepiece's trainer writes them, and a walk through one as its normalizer does it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace plimsoll::tokenize {

inline constexpr uint32_t kLeafFollows = 1u << 8, kIsLeaf = 1u << 31;

inline std::string bytes_of(const std::vector<uint32_t>& units) {
  std::string bytes(units.size() * sizeof(uint32_t), '\0');
  std::memcpy(bytes.data(), units.data(), bytes.size());
  return bytes;
}

inline std::string charsmap_of(const std::vector<uint32_t>& units, std::string_view replacements) {
  const std::string trie = bytes_of(units);
  return bytes_of({static_cast<uint32_t>(trie.size())}) + trie + std::string(replacements);
}

// A double array over keys of bytes other than zero.
class DoubleArrayBuilder {
 public:
  std::vector<uint32_t> build(const std::map<std::string, uint32_t>& values) {
    units_.assign(256, 0);
    used_ = {0};
    begins_.clear();
    place(0, 0, values);
    for (uint32_t unit = 0; unit < units_.size(); ++unit) {
      if (!used_.contains(unit)) units_[unit] = kIsLeaf;  // no byte's label
    }
    return units_;
  }

 private:
  void place(uint32_t unit, size_t depth, const std::map<std::string, uint32_t>& values) {
    std::map<unsigned char, std::map<std::string, uint32_t>> children;
    std::optional<uint32_t> leaf;
    for (const auto& [key, value] : values) {
      if (key.size() == depth) {
        leaf = value;
      } else {
        children[static_cast<unsigned char>(key[depth])].emplace(key, value);
      }
    }
    const uint32_t begin = free_begin(children);
    begins_.insert(begin);
    units_[unit] |= (begin ^ unit) << 10 | (leaf ? kLeafFollows : 0);
    used_.insert(begin);
    units_[begin] = kIsLeaf | leaf.value_or(0);
    for (const auto& [byte, below] : children) used_.insert(begin ^ byte), units_[begin ^ byte] = byte;
    for (const auto& [byte, below] : children) place(begin ^ byte, depth + 1, below);
  }

  // First place where none of the children meets a unit in use. The array grows by 256 units at a time.
  uint32_t free_begin(const std::map<unsigned char, std::map<std::string, uint32_t>>& children) {
    for (uint32_t begin = 1;; ++begin) {
      while ((begin | 255) >= units_.size()) units_.resize(units_.size() + 256);
      const bool taken = begins_.contains(begin) || used_.contains(begin);
      if (!taken && std::none_of(children.begin(), children.end(),
                                 [&](const auto& child) { return used_.contains(begin ^ child.first); })) {
        return begin;
      }
    }
  }

  std::vector<uint32_t> units_;
  std::set<uint32_t> used_, begins_;
};

// Walk that Darts::DoubleArray::commonPrefixSearch makes through the text, with every read checked.
struct PrefixWalk {
  bool left_the_array = false;
  std::vector<uint32_t> values;  // of the keys that the text begins with
};

inline PrefixWalk walk(const std::vector<uint32_t>& units, std::string_view text) {
  const auto offset = [](uint32_t unit) { return (unit >> 10) << ((unit & (1u << 9)) >> 6); };
  PrefixWalk found;
  uint64_t place = units.empty() ? 0 : offset(units[0]);
  for (const char letter : text) {
    const auto byte = static_cast<unsigned char>(letter);
    place ^= byte;
    if (place >= units.size()) return {.left_the_array = true, .values = {}};
    const uint32_t unit = units[place];
    if ((unit & (kIsLeaf | 255)) != byte) return found;
    place ^= offset(unit);
    if ((unit & kLeafFollows) == 0) continue;
    if (place >= units.size()) return {.left_the_array = true, .values = {}};
    found.values.push_back(units[place] & ~kIsLeaf);
  }
  return found;
}

}  // namespace plimsoll::tokenize
