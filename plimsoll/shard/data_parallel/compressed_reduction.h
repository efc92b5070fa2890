// The average over the ranks of arrays that travel to one of them in fewer bytes. What rounding leaves out of a rank's
// values joins what it sends the next time, as in average/compressed_average.h.
#pragma once

#include <ATen/core/TensorBody.h>

#include <memory>

#include "plimsoll/shard/average/averaging.h"
#include "plimsoll/shard/average/compression.h"
#include "plimsoll/shard/communicator/communicator.h"

namespace plimsoll::shard {

class CompressedReduction {
 public:
  CompressedReduction(Compression compression, std::shared_ptr<const Communicator> ranks, int64_t owner,
                      const Averaging& averaging, int64_t elements);

  // Collectives, in this order. values: fp32 [elements], divided by predivide. flags: uint8, as many on each rank.
  void start(const at::Tensor& values, const at::Tensor& flags);
  struct Result {
    at::Tensor values;  // fp32 [elements] on the owner; elsewhere undefined
    at::Tensor flags;   // those that some rank has set
  };
  Result finish();

  // An exception ended the pass.
  void abandon() { arriving_ = {}; }

  // Bytes that a rank other than the owner sends in one average.
  int64_t sent_bytes() const { return sent_bytes_; }

  // fp32 [elements], what rounding has left out of this rank's values so far: a view, to be saved, or written.
  at::Tensor left_out() const { return left_.view({-1}).narrow(0, 0, elements_); }

 private:
  Compression compression_;
  std::shared_ptr<const Communicator> ranks_;
  int64_t owner_;
  double postdivide_;
  int64_t elements_;
  at::Tensor left_;  // [1, elements, and as many zeros as complete a block]
  int64_t value_bytes_ = 0, sent_bytes_ = 0;
  ops::Arriving arriving_;
};

}  // namespace plimsoll::shard
