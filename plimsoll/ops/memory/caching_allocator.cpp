#include "plimsoll/ops/memory/caching_allocator.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <pthread.h>

#include "plimsoll/runtime/block_pool.h"

namespace plimsoll {
namespace {

constexpr size_t kSmallest = size_t{256} << 10;  // bytes from which the pool serves

// Never destroyed: tensors with static storage may outlive anything that is.
runtime::BlockPool& pool() {
  static auto* const instance = new runtime::BlockPool();
  return *instance;
}

void free_block(void* data) {
  c10::profiledCPUMemoryReporter().Delete(data);
  pool().free(data);
}

class CachingAllocator : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes < kSmallest) return c10::GetDefaultCPUAllocator()->allocate(bytes);
    void* const data = pool().allocate(bytes);
    if (data == nullptr) c10::profiledCPUMemoryReporter().OutOfMemory(bytes);
    TORCH_CHECK_WITH(OutOfMemoryError, data != nullptr, "caching allocator: expected ", bytes,
                     " bytes of memory, the system has none left");
    c10::profiledCPUMemoryReporter().New(data, bytes);
    return {data, data, &free_block, c10::Device(c10::kCPU)};
  }

  // For memory that was allocated without its DataPtr, and so of either kind.
  c10::DeleterFnPtr raw_deleter() const override {
    return [](void* data) {
      if (pool().owns(data)) {
        free_block(data);
      } else {
        c10::GetDefaultCPUAllocator()->raw_deleter()(data);
      }
    };
  }

  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
};

void install() {
  pthread_atfork([] { pool().lock(); }, [] { pool().unlock(); }, [] { pool().unlock(); });
  static CachingAllocator allocator;
  c10::SetCPUAllocator(&allocator, /*priority=*/1);
}

}  // namespace

void use_caching_allocator() { [[maybe_unused]] static const bool installed = (install(), true); }

CachingAllocatorStatistics caching_allocator_statistics() {
  const runtime::BlockPool::Statistics seen = pool().statistics();
  return {.bytes_in_use = static_cast<int64_t>(seen.in_use),
          .bytes_idle = static_cast<int64_t>(seen.idle),
          .peak_bytes_in_use = static_cast<int64_t>(seen.peak),
          .blocks_mapped = seen.mapped};
}

void release_cached_memory() { pool().release_idle(); }

}  // namespace plimsoll
