// Gradients that travel together: to all ranks, or to the one that updates their parameters.
#pragma once

#include <ATen/core/TensorBody.h>

#include <memory>
#include <optional>
#include <vector>

#include "plimsoll/shard/average/averaging.h"
#include "plimsoll/shard/average/compressed_average.h"
#include "plimsoll/shard/communicator/communicator.h"
#include "plimsoll/shard/data_parallel/compressed_reduction.h"

namespace plimsoll::shard {

inline constexpr size_t kUnderWay = 2;  // buckets that travel while the next is filled

struct GradientBucket {
  static constexpr int64_t kAllRanks = -1;
  // Behind the flags: set by ranks that had begun an even number of rounds before this one, and an odd one.
  static constexpr int64_t kMarks = 2;

  struct Member {
    size_t parameter;
    int64_t offset;  // in the bucket
  };

  int64_t owner = kAllRanks;
  std::vector<Member> members;
  int64_t elements = 0;
  int64_t ready = 0;  // members whose gradients are there
  // The gradients, behind them for each member how many ranks have one, and kMarks.
  at::Tensor values;
  Pending sum;
  // One of them instead of the sum, or none.
  std::unique_ptr<CompressedAverage> compressed;
  std::unique_ptr<CompressedReduction> compressed_for_owner;

  bool is_for(int64_t rank) const { return owner == kAllRanks || owner == rank; }
  bool is_full() const { return ready == static_cast<int64_t>(members.size()); }
  bool is_compressed() const { return compressed != nullptr || compressed_for_owner != nullptr; }
  at::Tensor gradients() const { return values.narrow(0, 0, elements); }
  at::Tensor flags() const { return values.slice(0, elements); }
  at::Tensor marks() const { return values.slice(0, -kMarks); }

  void compress(Compression compression, const std::shared_ptr<const Communicator>& ranks, const Averaging& averaging);
  void allocate(at::ScalarType dtype);  // zeros, unless there is something
  void clear();                         // an exception may have ended the pass

  // Collectives, in this order.
  void start(const Communicator& ranks);
  void advance();
  // The averages take the place of this rank's values, where it gets them.
  void finish(const Communicator& ranks, const Averaging& averaging);

  // Bytes that one rank sends in one pass.
  int64_t sent_bytes(int64_t world_size, at::ScalarType dtype) const;
  // Remainder of compressing a member's gradient, or nothing.
  std::optional<CompressedAverage::LeftOut> left_out(const Member& member, int64_t numel) const;
};

struct BucketSizes {
  int64_t elements = 0;  // 0: each gradient by itself
  int64_t first = 0;     // of those that are full first
};

// Parameters that require a gradient, in reverse order, which is about the order in which backward() reaches them. Each
// owner has a bucket that fills; no owners: all ranks. The buckets are in the order in which they are full.
std::vector<GradientBucket> buckets_of(const std::vector<at::Tensor>& parameters, const std::vector<int64_t>& owners,
                                       const BucketSizes& sizes);

}  // namespace plimsoll::shard
