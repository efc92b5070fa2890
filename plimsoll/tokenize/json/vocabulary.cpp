#include "plimsoll/tokenize/json/vocabulary.h"

#include <functional>

namespace plimsoll::tokenize {
namespace {

constexpr uint32_t kFree = UINT32_MAX;

size_t hash_of(std::string_view token) { return std::hash<std::string_view>()(token); }

}  // namespace

void Vocabulary::add(std::string_view token, uint32_t id) {
  if (2 * (count_ + 1) > slots_.size()) grow();
  if (id >= entries_.size()) entries_.resize(id + 1);
  entries_[id] = {texts_.size(), static_cast<int64_t>(token.size())};
  texts_ += token;
  ++count_;
  size_t slot = hash_of(token) & (slots_.size() - 1);
  while (slots_[slot] != kFree) slot = (slot + 1) & (slots_.size() - 1);
  slots_[slot] = id;
}

std::optional<uint32_t> Vocabulary::find(std::string_view token) const {
  if (slots_.empty()) return std::nullopt;
  for (size_t slot = hash_of(token) & (slots_.size() - 1); slots_[slot] != kFree;
       slot = (slot + 1) & (slots_.size() - 1)) {
    if (this->token(slots_[slot]) == token) return slots_[slot];
  }
  return std::nullopt;
}

void Vocabulary::grow() {
  const size_t size = slots_.empty() ? 1024 : 2 * slots_.size();
  slots_.assign(size, kFree);
  for (size_t id = 0; id < entries_.size(); ++id) {
    if (entries_[id].bytes < 0) continue;
    size_t slot = hash_of(token(static_cast<uint32_t>(id))) & (size - 1);
    while (slots_[slot] != kFree) slot = (slot + 1) & (size - 1);
    slots_[slot] = static_cast<uint32_t>(id);
  }
}

}  // namespace plimsoll::tokenize
