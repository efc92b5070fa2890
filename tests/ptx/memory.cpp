#include "tests/ptx/memory.h"

#include <algorithm>
#include <cstring>

namespace plimsoll::ptx {
namespace {

constexpr uint64_t kFirstAddress = uint64_t{1} << 44, kDistance = uint64_t{1} << 36;

bool is_before(const Moment& earlier, const Moment& now, uint32_t block_threads) {
  if (earlier.thread == 0 || earlier.thread == now.thread) return true;
  const uint32_t one = earlier.thread - 1, other = now.thread - 1;
  if (one / block_threads != other / block_threads) return false;
  if (earlier.block_time < now.block_time) return true;
  return one / 32 == other / 32 && earlier.warp_time < now.warp_time;
}

}  // namespace

uint32_t Shadow::Latest::concurrent_with(const Moment& now, uint32_t block_threads) const {
  if (!is_before(first, now, block_threads)) return first.thread;
  return is_before(second, now, block_threads) ? 0 : second.thread;
}

void Shadow::Latest::add(const Moment& now, uint32_t block_threads) {
  const bool same_warp = (first.thread - 1) / 32 == (second.thread - 1) / 32;
  if (is_before(first, now, block_threads)) {
    first = now;
  } else if (is_before(second, now, block_threads) || (same_warp && (first.thread - 1) / 32 != (now.thread - 1) / 32)) {
    second = now;
  }
}

uint32_t Shadow::record(Access access, const Moment& now, uint32_t block_threads) {
  uint32_t other = writes_.concurrent_with(now, block_threads);
  if (other == 0 && access != Access::kAtomic) other = atomics_.concurrent_with(now, block_threads);
  if (other == 0 && access != Access::kRead) other = reads_.concurrent_with(now, block_threads);
  Latest& latest = access == Access::kRead ? reads_ : access == Access::kWrite ? writes_ : atomics_;
  latest.add(now, block_threads);
  return other;
}

uint64_t Memory::add(const std::string& name, const void* data, size_t size, size_t offset, bool read_only) {
  const uint64_t address = add_unwritten(name, size, offset);
  Buffer& buffer = buffers_.back();
  if (size > 0) std::memcpy(buffer.bytes.data(), data, size);
  for (Shadow& shadow : buffer.shadow) shadow.written = true;
  buffer.read_only = read_only;
  return address;
}

uint64_t Memory::add_unwritten(const std::string& name, size_t size, size_t offset) {
  buffers_.emplace_back(name, kFirstAddress + kDistance * buffers_.size() + offset, size, true);
  return buffers_.back().base;
}

Buffer& Memory::at(uint64_t address) {
  for (Buffer& buffer : buffers_) {
    if (address - buffer.base < kDistance / 2) return buffer;
  }
  for (Buffer& buffer : buffers_) {
    if (buffer.base - address < kDistance / 2) return buffer;
  }
  throw Fault("address " + std::to_string(address) + " belongs to no buffer");
}

void Memory::synchronize() {
  for (Buffer& buffer : buffers_) {
    for (Shadow& shadow : buffer.shadow) {
      const bool written = shadow.written;
      shadow = {};
      shadow.written = written;
    }
  }
}

uint8_t* check_access(Buffer& buffer, const MemoryAccess& access) {
  const uint64_t offset = access.address - buffer.base, size = buffer.bytes.size();
  const char* verb = access.access == Shadow::Access::kRead    ? "reads "
                     : access.access == Shadow::Access::kWrite ? "writes "
                                                               : "updates ";
  const auto place = [&](uint64_t byte) {
    return buffer.name + ", byte " + std::to_string(static_cast<int64_t>(byte));
  };
  if (offset >= size || access.size > size - offset) {
    throw Fault(std::string("out of bounds: ") + verb + std::to_string(access.size) + " bytes of " + place(offset) +
                " of " + std::to_string(size));
  }
  if (access.address % access.size != 0) {
    throw Fault(std::string("not aligned: ") + verb + std::to_string(access.size) + " bytes of " + place(offset));
  }
  if (access.access != Shadow::Access::kRead && buffer.read_only)
    throw Fault("read only: " + std::string(verb) + place(offset));
  for (uint64_t i = offset; i < offset + access.size && !buffer.shadow.empty(); ++i) {
    Shadow& shadow = buffer.shadow[i];
    if (access.access != Shadow::Access::kWrite && !shadow.written)
      throw Fault("not written yet: " + std::string(verb) + place(i));
    shadow.written = true;
    if (const uint32_t other = shadow.record(access.access, access.now, access.block_threads); other != 0) {
      throw Fault("race: " + std::string(verb) + place(i) + ", as does " + name_of_thread(other, access.block_threads) +
                  " without a barrier between");
    }
  }
  return buffer.bytes.data() + offset;
}

std::string name_of_thread(uint32_t thread, uint32_t block_threads) {
  return "block " + std::to_string((thread - 1) / block_threads) + " thread " +
         std::to_string((thread - 1) % block_threads);
}

}  // namespace plimsoll::ptx
