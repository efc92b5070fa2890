// Tokens and their ids, both ways. Ids may have holes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace plimsoll::tokenize {

inline constexpr int64_t kMaxIds = int64_t{1} << 21;  // the largest vocabulary in use has about 2^20

class Vocabulary {
 public:
  // The token must not be there, nor its id. id < kMaxIds.
  void add(std::string_view token, uint32_t id);

  std::optional<uint32_t> find(std::string_view token) const;
  bool contains(uint32_t id) const { return id < entries_.size() && entries_[id].bytes >= 0; }
  std::string_view token(uint32_t id) const {
    return std::string_view(texts_).substr(entries_[id].begin, static_cast<size_t>(entries_[id].bytes));
  }
  size_t count() const { return count_; }
  size_t end() const { return entries_.size(); }  // the greatest id and one

 private:
  struct Entry {
    size_t begin = 0;
    int64_t bytes = -1;  // -1: a hole
  };
  void grow();

  std::string texts_;
  std::vector<Entry> entries_;   // by id
  std::vector<uint32_t> slots_;  // ids by their tokens' hash, open addressing, at most half full
  size_t count_ = 0;
};

}  // namespace plimsoll::tokenize
