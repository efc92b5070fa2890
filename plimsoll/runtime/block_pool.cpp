#include "plimsoll/runtime/block_pool.h"

#include <algorithm>
#include <iterator>

#include "plimsoll/runtime/pages.h"

namespace plimsoll::runtime {
namespace {

constexpr size_t kSlack = size_t{64} << 20;  // bytes that may lie idle whatever the peak
// Blocks begin at different offsets in their first page: a kernel that reads one and writes another at the same offset
// modulo 4 KiB would have its loads wait for unrelated stores (4K aliasing; Intel optimization manual, 15.8).
constexpr size_t kLine = 64, kPage = 4096, kColourStep = 13 * kLine;

constexpr size_t kGranule = size_t{64} << 10;  // of blocks' sizes

size_t rounded_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

BlockPool::~BlockPool() {
  release_idle();
  for (const auto& [data, block] : used_) unmap_pages(block.base, block.size);
}

void* BlockPool::allocate(size_t bytes) {
  const std::lock_guard guard(mutex_);
  const size_t size = rounded_up(bytes + kPage, kGranule);
  if (size < bytes) return nullptr;
  char* base = take_idle(size);
  if (base == nullptr && map_more(size)) base = take_idle(size);
  if (base == nullptr) return nullptr;
  const size_t colour = static_cast<size_t>(clock_++) * kColourStep % kPage;
  used_[base + colour] = {base, size};
  statistics_.in_use += size;
  statistics_.peak = std::max(statistics_.peak, statistics_.in_use);
  return base + colour;
}

void BlockPool::add_idle(char* base, IdleRange range) {
  statistics_.idle += range.size;
  auto next = idle_.lower_bound(base);
  if (next != idle_.end() && next->first == base + range.size) {
    const auto after = next++;
    range.size += remove_idle(after).size;
  }
  if (next != idle_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second.size == base) {
      base = before->first;
      range.size += remove_idle(before).size;
    }
  }
  idle_.emplace(base, range);
  idle_by_size_.emplace(range.size, base);
}

// The caller keeps statistics_.idle true.
BlockPool::IdleRange BlockPool::remove_idle(IdleRanges::iterator range) {
  const IdleRange removed = range->second;
  idle_by_size_.erase({removed.size, range->first});
  idle_.erase(range);
  return removed;
}

char* BlockPool::take_idle(size_t size) {
  const auto found = idle_by_size_.lower_bound({size, nullptr});
  if (found == idle_by_size_.end()) return nullptr;
  char* const base = found->second;
  const IdleRange range = remove_idle(idle_.find(base));
  statistics_.idle -= range.size;
  if (range.size > size) add_idle(base + size, {range.size - size, range.freed});
  return base;
}

void BlockPool::free(void* data) {
  const std::lock_guard guard(mutex_);
  const auto found = used_.find(data);
  if (found == used_.end()) return;
  const Block block = found->second;
  used_.erase(found);
  statistics_.in_use -= block.size;
  add_idle(block.base, {block.size, clock_++});
}

bool BlockPool::owns(const void* data) const {
  const std::lock_guard guard(mutex_);
  return used_.contains(data);
}

// An idle range of at least `size`.
bool BlockPool::map_more(size_t size) {
  const size_t mapped = rounded_up(size, kHugePage);
  const size_t peak = std::max(statistics_.peak, statistics_.in_use + size);
  const size_t limit = peak + std::max(peak / 16, kSlack);
  while (!idle_.empty() && statistics_.in_use + statistics_.idle + mapped > limit) release_oldest();
  void* base = map_pages(mapped);
  if (base == nullptr) {
    while (!idle_.empty()) release_oldest();
    base = map_pages(mapped);
  }
  if (base == nullptr) return false;
  ++statistics_.mapped;
  add_idle(static_cast<char*>(base), {mapped, clock_++});
  return true;
}

void BlockPool::release_oldest() {
  const auto oldest = std::min_element(idle_.begin(), idle_.end(),
                                       [](const auto& a, const auto& b) { return a.second.freed < b.second.freed; });
  char* const base = oldest->first;
  const size_t size = remove_idle(oldest).size;
  statistics_.idle -= size;
  unmap_pages(base, size);
}

void BlockPool::release_idle() {
  const std::lock_guard guard(mutex_);
  while (!idle_.empty()) release_oldest();
}

BlockPool::Statistics BlockPool::statistics() const {
  const std::lock_guard guard(mutex_);
  return statistics_;
}

}  // namespace plimsoll::runtime
