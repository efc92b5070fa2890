// Large blocks of memory that are kept between uses, so that a training step does not pay page faults for each of its
// results. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <unordered_map>
#include <utility>

namespace plimsoll::runtime {

class BlockPool {
 public:
  struct Statistics {
    size_t in_use = 0;   // bytes of blocks handed out
    size_t idle = 0;     // bytes kept for the next call
    size_t peak = 0;     // the most that was in use at a time
    int64_t mapped = 0;  // times that memory was asked of the system
  };

  BlockPool() = default;
  ~BlockPool();
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  // At least `bytes` bytes, 64-byte aligned, contents undefined; nullptr when the system has no memory. Taken from the
  // smallest idle range that is large enough; neighbours that lie idle are one range. What lies idle never makes the
  // whole larger than peak + max(peak / 16, 64 MiB): the ranges that were freed first go back to the system.
  void* allocate(size_t bytes);
  void free(void* data);              // what allocate returned
  bool owns(const void* data) const;  // whether it is a block in use

  void release_idle();  // back to the system
  Statistics statistics() const;

  // Around fork(), so that the child does not inherit a locked pool.
  void lock() const { mutex_.lock(); }
  void unlock() const { mutex_.unlock(); }

 private:
  struct Block {
    char* base = nullptr;
    size_t size = 0;
  };
  struct IdleRange {
    size_t size = 0;
    uint64_t freed = 0;  // when, for the order of release
  };
  using IdleRanges = std::map<char*, IdleRange>;  // by address

  void add_idle(char* base, IdleRange range);
  IdleRange remove_idle(IdleRanges::iterator range);
  char* take_idle(size_t size);
  bool map_more(size_t size);
  void release_oldest();

  mutable std::mutex mutex_;
  IdleRanges idle_;
  std::set<std::pair<size_t, char*>> idle_by_size_;
  std::unordered_map<const void*, Block> used_;
  Statistics statistics_;
  uint64_t clock_ = 0;
};

}  // namespace plimsoll::runtime
