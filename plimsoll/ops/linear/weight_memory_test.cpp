#include "plimsoll/ops/linear/weight_memory.h"

#include <gtest/gtest.h>

#include <vector>

namespace plimsoll::ops {
namespace {

uintptr_t address(const at::Tensor& memory) { return reinterpret_cast<uintptr_t>(memory.const_data_ptr()); }

TEST(WeightMemory, PartsAreAlignedAndApart) {
  std::vector<at::Tensor> parts;
  for (const int64_t bytes : {1, 64, 65, 1 << 20, 12 << 20, 12 << 20, 12 << 20, 40 << 20, 0, 7}) {
    parts.push_back(weight_memory(bytes));
    EXPECT_EQ(parts.back().numel(), bytes);
    EXPECT_EQ(address(parts.back()) % 64, 0u);
    parts.back().fill_(static_cast<int64_t>(parts.size()));
    weight_is_written(parts.back());
  }
  for (size_t i = 0; i < parts.size(); ++i) EXPECT_TRUE(parts[i].eq(static_cast<int64_t>(i + 1)).all().item<bool>());
}

TEST(WeightMemory, SmallOnesShareABlockThatLivesAsLongAsTheyDo) {
  at::Tensor first = weight_memory(100), second = weight_memory(100);
  EXPECT_TRUE(first.is_alias_of(second));
  const c10::weak_intrusive_ptr<c10::StorageImpl> block = first.storage().getWeakStorageImpl();
  first = at::Tensor();
  EXPECT_FALSE(block.expired());
  second.fill_(3);
  second = at::Tensor();
  EXPECT_TRUE(block.expired());
  EXPECT_EQ(weight_memory(100).fill_(4).sum().item<int64_t>(), 400);
}

}  // namespace
}  // namespace plimsoll::ops
