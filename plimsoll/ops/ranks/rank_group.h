// The ranks that share a layer, or its amaxes, as ops/ sees them; who moves the bytes is not its concern.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <span>

namespace plimsoll::ops {

// Collectives: all ranks call the same ones in the same order, with tensors of the same sizes. Each throws where
// another rank has failed, or does not come within the time-out of the group.
class RankGroup {
 public:
  RankGroup() = default;
  RankGroup(const RankGroup&) = delete;
  RankGroup& operator=(const RankGroup&) = delete;
  virtual ~RankGroup() = default;

  virtual int64_t size() const = 0;

  // x [n, ...] of each rank -> [size n, ...] in the order of the ranks. Any dtype.
  virtual at::Tensor all_gather(const at::Tensor& x) const = 0;

  // x [size n, ...] -> the n rows of this rank, summed over the ranks in FP32 and rounded once.
  virtual at::Tensor reduce_scatter(const at::Tensor& x) const = 0;

  // The sum over the ranks, of the same shape and with the same bits on each. In FP32 and rounded once.
  virtual at::Tensor all_reduce(const at::Tensor& x) const = 0;

  // Each element becomes its maximum over the ranks.
  virtual void all_reduce_max(std::span<int32_t> values) const = 0;
};

}  // namespace plimsoll::ops
