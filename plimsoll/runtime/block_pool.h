// Large blocks of memory that are kept between uses, so that a training step does not pay page faults for each of its
// results. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace plimsoll::runtime {

class BlockPool {
 public:
  struct Statistics {
    size_t in_use = 0;   // bytes of blocks handed out
    size_t idle = 0;     // bytes of blocks kept for the next call
    size_t peak = 0;     // the most that was in use at a time
    int64_t mapped = 0;  // blocks asked of the system since the start
  };

  BlockPool() = default;
  ~BlockPool();
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  // At least `bytes` bytes, 64-byte aligned, contents undefined; nullptr when the system has no memory. An idle block
  // is taken if at most an eighth of it would be wasted. What lies idle never makes the whole larger than
  // max(1.25 peak, peak + 64 MiB): the blocks that were freed first go back to the system.
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
    void* base = nullptr;
    size_t size = 0;
    uint64_t freed = 0;  // when, for the order of release
  };

  bool take_idle(size_t size, Block& block);
  void make_room(size_t size);
  void release_oldest();

  mutable std::mutex mutex_;
  std::multimap<size_t, Block> idle_;  // by size
  std::unordered_map<const void*, Block> used_;
  Statistics statistics_;
  uint64_t clock_ = 0;
};

}  // namespace plimsoll::runtime
