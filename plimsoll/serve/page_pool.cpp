#include "plimsoll/serve/page_pool.h"

namespace plimsoll::serve {

PagePool::PagePool(int64_t pages) : pages_(static_cast<size_t>(pages)) {
  for (Page& page : pages_) page.place = free_.insert(free_.end(), static_cast<int32_t>(free_.size()));
}

std::optional<PagePool::Named> PagePool::find(int64_t prefix, std::span<const int64_t> tokens) const {
  const auto named = names_.find({prefix, {tokens.begin(), tokens.end()}});
  return named == names_.end() ? std::nullopt : std::optional(named->second);
}

int64_t PagePool::name(int32_t page, int64_t prefix, std::span<const int64_t> tokens) {
  const auto [named, is_new] = names_.try_emplace({prefix, {tokens.begin(), tokens.end()}}, page, prefixes_ + 1);
  if (is_new) {
    at(page).name = named;
    ++prefixes_;
  }
  return named->second.prefix;
}

int32_t PagePool::take() {
  const int32_t number = free_.front();
  Page& page = at(number);
  if (page.name) {
    names_.erase(*page.name);
    page.name.reset();
    --kept_;
  }
  taken_.splice(taken_.end(), free_, page.place);
  page.owners = 1;
  return number;
}

void PagePool::take(int32_t number) {
  Page& page = at(number);
  if (page.owners++ > 0) return;
  taken_.splice(taken_.end(), free_, page.place);
  --kept_;
}

void PagePool::give_back(int32_t number) {
  Page& page = at(number);
  if (--page.owners > 0) return;
  free_.splice(page.name ? free_.end() : free_.begin(), taken_, page.place);
  if (page.name) ++kept_;
}

}  // namespace plimsoll::serve
