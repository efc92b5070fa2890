// A RankGroup over something that moves bytes, which every backend of c10d can (Gloo knows no FP8 dtype). Sums are made
// here, in FP32: a backend's bf16 rounds after each addition, and Gloo's reduce_scatter sends as much as an all_reduce.
#pragma once

#include "plimsoll/ops/rank_group.h"

namespace plimsoll::ops {

class ByteRankGroup : public RankGroup {
 public:
  at::Tensor all_gather(const at::Tensor& x) const override;
  at::Tensor reduce_scatter(const at::Tensor& x) const override;
  at::Tensor all_reduce(const at::Tensor& x) const override;

 protected:
  // mine uint8 [n], n > 0, of each rank -> [size n] in the order of the ranks.
  virtual at::Tensor gather_bytes(const at::Tensor& mine) const = 0;
  // parts uint8 [size n], n > 0, one for each rank -> [size n]: this rank's part of each rank.
  virtual at::Tensor exchange_bytes(const at::Tensor& parts) const = 0;
};

}  // namespace plimsoll::ops
