#include "plimsoll/runtime/block_pool.h"

#include <algorithm>

#include "plimsoll/runtime/pages.h"

namespace plimsoll::runtime {
namespace {

constexpr size_t kSlack = size_t{64} << 20;  // bytes that may lie idle whatever the peak
// Blocks begin at different offsets in their first page: a kernel that reads one and writes another at the same offset
// modulo 4 KiB would have its loads wait for unrelated stores (4K aliasing; Intel optimization manual, 15.8).
constexpr size_t kLine = 64, kPage = 4096, kColourStep = 13 * kLine;

// Blocks grow in such steps, so that slightly different sizes share them.
constexpr size_t kGranule = size_t{64} << 10;

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
  Block block;
  if (!take_idle(size, block)) {
    make_room(size);
    block = {map_pages(size), size};
    if (block.base == nullptr) {
      while (!idle_.empty()) release_oldest();
      block.base = map_pages(size);
    }
    if (block.base == nullptr) return nullptr;
    ++statistics_.mapped;
  }
  const size_t colour = static_cast<size_t>(clock_++) * kColourStep % kPage;
  void* const data = static_cast<char*>(block.base) + colour;
  used_[data] = block;
  statistics_.in_use += block.size;
  statistics_.peak = std::max(statistics_.peak, statistics_.in_use);
  return data;
}

bool BlockPool::take_idle(size_t size, Block& block) {
  const auto found = idle_.lower_bound(size);
  if (found == idle_.end() || found->first > size + size / 8) return false;
  block = found->second;
  idle_.erase(found);
  statistics_.idle -= block.size;
  return true;
}

void BlockPool::free(void* data) {
  const std::lock_guard guard(mutex_);
  const auto found = used_.find(data);
  if (found == used_.end()) return;
  Block block = found->second;
  used_.erase(found);
  block.freed = clock_++;
  statistics_.in_use -= block.size;
  statistics_.idle += block.size;
  idle_.emplace(block.size, block);
}

bool BlockPool::owns(const void* data) const {
  const std::lock_guard guard(mutex_);
  return used_.contains(data);
}

void BlockPool::make_room(size_t size) {
  const size_t peak = std::max(statistics_.peak, statistics_.in_use + size);
  const size_t limit = std::max(peak + peak / 4, peak + kSlack);
  while (!idle_.empty() && statistics_.in_use + statistics_.idle + size > limit) release_oldest();
}

void BlockPool::release_oldest() {
  const auto oldest = std::min_element(idle_.begin(), idle_.end(),
                                       [](const auto& a, const auto& b) { return a.second.freed < b.second.freed; });
  unmap_pages(oldest->second.base, oldest->second.size);
  statistics_.idle -= oldest->second.size;
  idle_.erase(oldest);
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
