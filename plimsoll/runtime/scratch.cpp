#include "plimsoll/runtime/scratch.h"

#include <array>
#include <cstdio>
#include <cstdlib>

#include "plimsoll/runtime/pages.h"

namespace plimsoll::runtime {
namespace {

struct Block {
  void* base = nullptr;
  size_t size = 0;

  void release() {
    if (base != nullptr) unmap_pages(base, size);
    base = nullptr;
    size = 0;
  }
};

struct Blocks {
  std::array<Block, static_cast<size_t>(ScratchSlot::kCount)> slots;
  ~Blocks() {
    for (Block& block : slots) block.release();
  }
};

thread_local Blocks blocks;

}  // namespace

void* scratch(ScratchSlot slot, size_t bytes) {
  Block& block = blocks.slots[static_cast<size_t>(slot)];
  if (bytes <= block.size) return block.base;
  const size_t size = (bytes + kHugePage - 1) / kHugePage * kHugePage;
  block.release();
  void* base = map_pages(size);
  if (base == nullptr) {
    // A parallel region cannot be left by an error.
    std::fprintf(stderr, "plimsoll: scratch: expected %zu bytes of memory, the system has none left\n", size);
    std::_Exit(1);
  }
  block = {base, size};
  return base;
}

size_t scratch_bytes() {
  size_t total = 0;
  for (const Block& block : blocks.slots) total += block.size;
  return total;
}

void release_scratch() {
  for (Block& block : blocks.slots) block.release();
}

}  // namespace plimsoll::runtime
