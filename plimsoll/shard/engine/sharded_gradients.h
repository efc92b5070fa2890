// The gradients of a flat array of parameters, from the whole ones of this rank's backward pass to the average over
// all ranks, of which each rank gets its part.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "plimsoll/shard/communicator/stream_order.h"
#include "plimsoll/shard/engine/flat_layout.h"
#include "plimsoll/shard/engine/group_options.h"

namespace plimsoll::shard {

class ShardedGradients {
 public:
  // parameter: one of them, for their dtype and device.
  ShardedGradients(std::shared_ptr<const FlatLayout> layout, ShardRanks ranks, const GroupOptions& options,
                   const at::Tensor& parameter);

  void set_averaging(const Averaging& averaging) { options_.averaging = averaging; }

  // Adds to the gradients that wait, in fp32, until they travel.
  void add(size_t parameter, const at::Tensor& grad);
  // Drops the gradients that have not been reduced.
  void forget();

  // Collectives, one after the other. leaves: the parts of this rank. The average joins the gradients of those that
  // receive any.
  void start_reduce();
  void finish_reduce(std::vector<at::Tensor>& leaves, const std::vector<bool>& receives);

 private:
  bool is_alone() const { return ranks_.size() == 1; }
  at::ScalarType sum_dtype() const { return sums_.dtype().toScalarType(); }
  at::ScalarType travels_in() const { return sum_dtype() == at::kDouble ? at::kDouble : options_.reduce_dtype; }
  at::Tensor ordered_average(const at::Tensor& terms, const std::vector<at::Tensor>& leaves);
  void put(const at::Tensor& average, std::vector<at::Tensor>& leaves, const std::vector<bool>& receives);
  at::Tensor waiting(const at::Tensor& part, int64_t begin, const at::Tensor& leaf);

  std::shared_ptr<const FlatLayout> layout_;
  ShardRanks ranks_;
  GroupOptions options_;
  at::TensorOptions sums_;  // dtype and device

  at::Tensor whole_;  // [padded], of this rank; undefined: none
  StreamOrder whole_order_;
  std::vector<bool> is_there_;
  ops::Arriving terms_;
  at::Tensor waiting_;      // [part], where the leaves' are; undefined: anywhere
  at::Tensor ordered_sum_;  // [part]
  std::vector<std::pair<at::Tensor, uint32_t>>
      left_;  // gradients, or none, as ordered_average left them; their versions
};

}  // namespace plimsoll::shard
