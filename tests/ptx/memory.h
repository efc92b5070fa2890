// Memory of a device, with shadow memory beside it: for each byte, whether it was ever written, and which threads read and wrote
// it last. Two accesses to a byte of which one is a write are a race unless the same thread makes both, a barrier stands
// between them, or both are atomic.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/ptx/module.h"

namespace plimsoll::ptx {

// Thread and time of an access. A time is the number of barriers passed: of the block, and of the warp (bar.warp.sync).
struct Moment {
  uint32_t thread = 0;  // 1 + its number in the launch, where each block has a multiple of 32; 0: never
  uint32_t block_time = 0, warp_time = 0;
};

class Shadow {
 public:
  enum class Access : uint8_t { kRead, kWrite, kAtomic };

  // The number of a thread with which the access races, or 0.
  uint32_t record(Access access, const Moment& now, uint32_t block_threads);
  bool written = false;

 private:
  // The last accesses of which none is known to be before the other: two are kept, of different warps if there are such.
  struct Latest {
    Moment first, second;
    uint32_t concurrent_with(const Moment& now, uint32_t block_threads) const;
    void add(const Moment& now, uint32_t block_threads);
  };
  Latest reads_, writes_, atomics_;
};

// Bytes that belong together, as one argument of a kernel, or the shared memory of a block.
struct Buffer {
  std::string name;
  uint64_t base = 0;
  std::vector<uint8_t> bytes;
  std::vector<Shadow> shadow;  // empty: private to a thread
  bool read_only = false;

  Buffer(std::string buffer_name, uint64_t address, size_t size, bool shadowed)
      : name(std::move(buffer_name)), base(address), bytes(size), shadow(shadowed ? size : 0) {}
};

// Global memory. Buffers lie far apart, so that an access out of bounds hits none.
class Memory {
 public:
  // offset: of its first byte from a multiple of 256. Bytes of the second are not written yet: to read them is a fault.
  uint64_t add(const std::string& name, const void* data, size_t size, size_t offset = 0, bool read_only = true);
  uint64_t add_unwritten(const std::string& name, size_t size, size_t offset = 0);

  // The buffer that holds the address, or lies before it.
  Buffer& at(uint64_t address);
  const uint8_t* data(uint64_t address) { return at(address).bytes.data() + (address - at(address).base); }
  std::vector<Buffer>& buffers() { return buffers_; }
  // A launch is over: all of its accesses are before those of the next one.
  void synchronize();

 private:
  std::vector<Buffer> buffers_;
};

// [address, address + size) read or written in one buffer. Fault: out of bounds, not aligned, not written, read only, a race.
struct MemoryAccess {
  Shadow::Access access = Shadow::Access::kRead;
  uint64_t address = 0;
  size_t size = 0;
  Moment now;
  uint32_t block_threads = 0;  // a multiple of 32
};
uint8_t* check_access(Buffer& buffer, const MemoryAccess& access);

// "block 2 thread 17" of 1 + a thread's number.
std::string name_of_thread(uint32_t thread, uint32_t block_threads);

}  // namespace plimsoll::ptx
