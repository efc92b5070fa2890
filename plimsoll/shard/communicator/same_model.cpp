#include "plimsoll/shard/communicator/same_model.h"

#include <ATen/ops/tensor.h>

#include <cstdint>
#include <string>

namespace plimsoll::shard {
namespace {

// FNV-1a, 64 bits: Fowler, Noll, Vo.
class Hash {
 public:
  void add(std::string_view text) {
    for (const char character : text) {
      value_ = (value_ ^ static_cast<unsigned char>(character)) * 0x100000001b3;
    }
    value_ *= 0x100000001b3;  // between one text and the next
  }
  int64_t value() const { return static_cast<int64_t>(value_); }

 private:
  uint64_t value_ = 0xcbf29ce484222325;
};

}  // namespace

void expect_same_tensors(const std::vector<std::pair<std::string, at::Tensor>>& tensors, const std::string& setup,
                         const ops::RankGroup& ranks) {
  if (ranks.size() == 1) return;
  Hash hash;
  for (const auto& [name, tensor] : tensors) {
    hash.add(name);
    hash.add(c10::toString(tensor.scalar_type()));
    hash.add(c10::str(tensor.sizes()));
    hash.add(tensor.requires_grad() ? "trained" : "kept");
  }
  hash.add(setup);
  const at::Tensor all = ranks.all_gather(at::tensor({hash.value()}, at::kLong));
  std::string others;
  for (int64_t rank = 1; rank < ranks.size(); ++rank) {
    if (all[rank].item<int64_t>() != all[0].item<int64_t>())
      others += (others.empty() ? "" : ", ") + std::to_string(rank);
  }
  TORCH_CHECK_VALUE(
      others.empty(),
      "expected the same names, shapes, dtypes and requires_grad of parameters and buffers on all ranks, got ",
      "others than rank 0's on rank ", others);
}

void expect_same_model(const torch::nn::Module& module, const ops::RankGroup& ranks) {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const auto& item : module.named_parameters()) tensors.emplace_back(item.key(), item.value());
  for (const auto& item : module.named_buffers()) tensors.emplace_back(item.key(), item.value());
  expect_same_tensors(tensors, "", ranks);
}

}  // namespace plimsoll::shard
