// Ids of words that came lately. A word has one place, by its hash; another word that belongs there takes it. Long words
// are not kept.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace plimsoll::tokenize {

class WordCache {
 public:
  static constexpr size_t kWordBytes = 31;
  static constexpr size_t kIds = 7;

  struct Key {
    std::array<uint64_t, 4> parts{};  // the word, zeros, and its size in the last byte
    bool operator==(const Key&) const = default;
  };
  // One line of the processor's cache.
  struct alignas(64) Entry {
    Key key;
    uint32_t count = 0;
    std::array<uint32_t, kIds> ids{};
  };

  WordCache() : entries_(size_t{1} << kBits) {}

  static bool fits(std::string_view word) { return !word.empty() && word.size() <= kWordBytes; }
  static Key key_of(std::string_view word) {
    Key key;
    std::memcpy(key.parts.data(), word.data(), word.size());
    key.parts[3] |= uint64_t{word.size()} << 56;
    return key;
  }
  // The entry where the word is, or would be.
  Entry& entry_of(const Key& key) {
    constexpr uint64_t kFactor = 0x9E3779B97F4A7C15U;  // 2^64 / golden ratio
    uint64_t hash = 0;
    for (const uint64_t part : key.parts) hash = (hash ^ part ^ (hash >> 32)) * kFactor;
    return entries_[hash >> (64 - kBits)];
  }
  static void keep(Entry& entry, const Key& key, std::span<const int64_t> ids) {
    if (ids.size() > kIds) return;
    entry.key = key;
    entry.count = static_cast<uint32_t>(ids.size());
    for (size_t i = 0; i < ids.size(); ++i) entry.ids[i] = static_cast<uint32_t>(ids[i]);
  }

 private:
  static constexpr int kBits = 14;  // 1 MiB
  std::vector<Entry> entries_;
};

}  // namespace plimsoll::tokenize
