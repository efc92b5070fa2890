// A RankGroup over something that moves bytes, which every backend of c10d can (Gloo knows no FP8 dtype). Sums are made
// here, in FP32: a backend's bf16 rounds after each addition, and Gloo's reduce_scatter sends as much as an all_reduce.
#pragma once

#include <functional>
#include <utility>

#include "plimsoll/ops/ranks/rank_group.h"

namespace plimsoll::ops {

// Bytes on their way to this rank, while it computes.
class Arriving {
 public:
  Arriving() = default;
  // wait: returns when the bytes are there, or throws. None: they are.
  explicit Arriving(at::Tensor bytes, std::function<void()> wait = nullptr)
      : bytes_(std::move(bytes)), wait_(std::move(wait)) {}

  // Waits. Throws as the collective does. Once.
  at::Tensor take() {
    if (const auto wait = std::exchange(wait_, nullptr)) wait();
    return std::move(bytes_);
  }

 private:
  at::Tensor bytes_;
  std::function<void()> wait_;
};

class ByteRankGroup : public RankGroup {
 public:
  at::Tensor all_gather(const at::Tensor& x) const override;
  at::Tensor reduce_scatter(const at::Tensor& x) const override;
  at::Tensor all_reduce(const at::Tensor& x) const override;

  // mine uint8 [n], n > 0, of each rank -> all uint8 [size n] in the order of the ranks.
  virtual Arriving start_gather(const at::Tensor& mine, const at::Tensor& all) const = 0;
  // parts uint8 [size n], n > 0, one for each rank -> [size n]: this rank's part of each rank.
  virtual Arriving start_exchange(const at::Tensor& parts) const = 0;
};

}  // namespace plimsoll::ops
