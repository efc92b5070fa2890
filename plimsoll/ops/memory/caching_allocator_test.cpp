#include "plimsoll/ops/memory/caching_allocator.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace plimsoll {
namespace {

constexpr int64_t kLarge = 1 << 20;  // fp32 elements, 4 MiB

TEST(CachingAllocator, ServesLargeTensorsFromThePool) {
  const at::Tensor before = at::full({kLarge}, 3.0f);
  use_caching_allocator();
  use_caching_allocator();
  for (int step = 0; step < 5; ++step) at::full({kLarge}, static_cast<float>(step));
  const int64_t mapped = caching_allocator_statistics().blocks_mapped;
  {
    const at::Tensor first = at::full({kLarge}, 1.0f), small = at::full({10}, 2.0f);
    const int64_t in_use = caching_allocator_statistics().bytes_in_use;
    EXPECT_GE(in_use, kLarge * 4);
    EXPECT_LT(in_use, kLarge * 5);
    EXPECT_EQ(first.sum().item<float>(), static_cast<float>(kLarge));
    EXPECT_EQ(small.sum().item<float>(), 20.0f);
  }
  EXPECT_EQ(caching_allocator_statistics().blocks_mapped, mapped);
  EXPECT_EQ(caching_allocator_statistics().bytes_in_use, 0);
  EXPECT_EQ(before.sum().item<float>(), 3.0f * kLarge);  // and gives it back where it came from
  release_cached_memory();
  EXPECT_EQ(caching_allocator_statistics().bytes_idle, 0);
}

TEST(CachingAllocator, TensorsCanBeResizedAndRawMemoryFreed) {
  use_caching_allocator();
  at::Tensor tensor = at::full({16}, 1.0f);
  tensor.resize_({kLarge});
  EXPECT_EQ(tensor[15].item<float>(), 1.0f);
  c10::Allocator& allocator = *c10::GetCPUAllocator();
  for (const size_t bytes : {size_t{100}, size_t{kLarge}}) allocator.raw_deallocate(allocator.raw_allocate(bytes));
}

TEST(CachingAllocator, TooMuchIsOneClearError) {
  use_caching_allocator();
  EXPECT_THROW(at::empty({int64_t{1} << 58}), c10::OutOfMemoryError);
}

TEST(CachingAllocator, AForkedProcessCanAllocate) {
  use_caching_allocator();
  const at::Tensor shared = at::full({kLarge}, 1.0f);
  const pid_t child = fork();
  if (child == 0) {
    const at::Tensor own = at::empty({kLarge});
    _exit(own.numel() == kLarge && shared[0].item<float>() == 1.0f ? 0 : 1);
  }
  int status = 1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace plimsoll
