#include "plimsoll/ops/linear/weight_memory.h"

#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <mutex>
#include <optional>

#include "plimsoll/runtime/pages.h"

namespace plimsoll::ops {
namespace {

constexpr int64_t kBlock = int64_t{32} << 20;  // bytes; what nobody has used yet is not resident
constexpr int64_t kWeightAlignment = 64, kSmallPage = 4096;

int64_t round_up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }

at::Tensor new_block(int64_t bytes) {
  const auto size = static_cast<size_t>(round_up(bytes, kSmallPage));
  void* base = runtime::map_pages(size);
  TORCH_CHECK(base != nullptr, "packed weights: expected ", size, " bytes of memory, got none from the system");
  runtime::take_small_pages(base, size);
  return at::from_blob(
      base, {bytes}, [size](void* memory) { runtime::unmap_pages(memory, size); }, at::kByte);
}

// The block that is being filled; it does not keep it alive.
struct Filling {
  std::mutex mutex;
  std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> block;
  int64_t used = 0;
};

}  // namespace

at::Tensor weight_memory(int64_t bytes) {
  if (bytes > kBlock / 2) return new_block(bytes);
  static Filling filling;
  const std::lock_guard<std::mutex> lock(filling.mutex);
  c10::intrusive_ptr<c10::StorageImpl> storage;
  if (filling.block && filling.used + bytes <= kBlock) storage = filling.block->lock();
  at::Tensor block;
  if (storage) {
    block = at::empty({0}, at::kByte).set_(c10::Storage(storage), 0, {kBlock}, {1});
  } else {
    block = new_block(kBlock);
    filling.block.emplace(block.storage().getWeakStorageImpl());
    filling.used = 0;
  }
  const int64_t begin = filling.used;
  filling.used += round_up(bytes, kWeightAlignment);
  return block.narrow(0, begin, bytes);
}

void weight_is_written(const at::Tensor& memory) {
  runtime::join_pages(memory.mutable_data_ptr(), static_cast<size_t>(memory.numel()));
}

}  // namespace plimsoll::ops
