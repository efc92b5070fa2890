// The average over the ranks of arrays that travel in fewer bytes, with what each rounding left out added to what
// travels the next time (error feedback): over many steps nothing is lost but what the last step left.
//
//   average.start(values, used);   // the ranks' parts travel to whom sums them
//   average.advance();             // the sums travel to all
//   const at::Tensor result = average.finish().values;
//
// Seide et al., 1-Bit Stochastic Gradient Descent, 2014; Tang et al., DoubleSqueeze, 2019. What is left out is in the
// units of the values of its step: a loss scale that changes in between scales it wrongly once.
#pragma once

#include <ATen/core/TensorBody.h>

#include <memory>

#include "plimsoll/ops/ranks/byte_rank_group.h"
#include "plimsoll/shard/average/averaging.h"
#include "plimsoll/shard/average/compression.h"

namespace plimsoll::shard {

class CompressedAverage {
 public:
  CompressedAverage(Compression compression, std::shared_ptr<const ops::ByteRankGroup> ranks, int64_t rank,
                    const Averaging& averaging, int64_t elements);

  // Collectives, in this order, each rank's `flags` uint8 of the same size. values fp32 [elements], divided by
  // predivide.
  void start(const at::Tensor& values, const at::Tensor& flags);
  void advance();
  struct Result {
    at::Tensor values;  // fp32 [elements], the same bits on all ranks
    at::Tensor flags;   // those that some rank has set
  };
  Result finish();

  // An exception ended the pass.
  void abandon();

  // Bytes that one rank sends in one average.
  int64_t sent_bytes() const { return sent_bytes_; }

  // Remainders of rounding so far: views of them, to be saved, or written to go on as another process would have.
  struct LeftOut {
    at::Tensor values;  // [elements], of this rank's values
    at::Tensor sums;    // of the sums that are made here: of elements [begin, begin + numel)
    int64_t begin = 0;

    // Remainders of elements [first, first + count), counted from `first`.
    LeftOut of(int64_t first, int64_t count) const;
  };
  LeftOut left_out() const;
  // A collective: [elements], of the sums of all ranks.
  at::Tensor sums_left_out() const;

 private:
  Compression compression_;
  std::shared_ptr<const ops::ByteRankGroup> ranks_;
  int64_t rank_;
  double postdivide_;
  int64_t elements_;
  int64_t part_;            // of each rank, elements
  int64_t part_bytes_ = 0;  // as it travels
  int64_t sent_bytes_ = 0;
  at::Tensor left_, sum_left_;  // by rounding: [size, part] of the rank's values; [1, part] of the sums made here
  ops::Arriving arriving_;
  at::Tensor flags_;
};

}  // namespace plimsoll::shard
