// Averages gradients over the ranks while backward() computes the rest of them.
#pragma once

#include <ATen/core/TensorBody.h>

#include <memory>
#include <vector>

#include "plimsoll/shard/averaging.h"
#include "plimsoll/shard/communicator.h"
#include "plimsoll/shard/compressed_average.h"

namespace plimsoll::shard {

struct ReducerOptions {
  double bucket_cap_mb = 25;  // gradients that travel together, in FP32; the first to be ready travel in 1 MB
  Compression compression = Compression::kNone;  // FP32 alone where there are owners
  // For each parameter the rank that gets its gradient, which the others then have no more. None: all get all.
  std::vector<int64_t> owners = {};
};

// Parameters in reverse order, which is about the order in which backward() reaches them, in buckets. A bucket travels
// when all before it have left and all its gradients are there, so that the ranks agree on the order.
class Reducer : public std::enable_shared_from_this<Reducer> {
 public:
  Reducer(std::vector<at::Tensor> parameters, std::shared_ptr<const Communicator> ranks, const ReducerOptions& options);

  // Hooks, which the parameters have until detach().
  void attach();
  void detach();

  // Of one rank in one pass.
  int64_t sent_bytes() const;

  // Of each parameter, in order; none without compression.
  std::vector<CompressedAverage::LeftOut> left_out() const;

  bool sync = true;  // false: gradients add up on each rank by itself

 private:
  static constexpr int kNoPass = -1;
  static constexpr int64_t kAllRanks = -1;

  struct Hook;
  struct Member {
    size_t parameter;
    int64_t offset;  // in the bucket
  };
  struct Bucket {
    int64_t owner = kAllRanks;
    std::vector<Member> members;
    int64_t elements = 0;
    int64_t ready = 0;  // members whose gradients are there
    // The gradients, and behind them for each member how many ranks have one.
    at::Tensor values;
    Pending sum;
    std::unique_ptr<CompressedAverage> compressed;  // instead of the sum, or none

    bool is_for(int64_t rank) const { return owner == kAllRanks || owner == rank; }
  };
  struct Place {
    size_t bucket, member;
  };

  void fill_buckets(double bucket_cap_mb);
  void ready(size_t index);
  void start(int pass);
  void send();
  void advance();
  void finish();
  void settle();
  void wait_for_averages(Bucket& bucket) const;
  void allocate(Bucket& bucket) const;
  at::Tensor slice(const Bucket& bucket, const Member& member) const;

  std::vector<at::Tensor> parameters_;
  std::shared_ptr<const Communicator> ranks_;
  Averaging averaging_;
  std::vector<int64_t> owners_;  // empty: all ranks
  std::vector<Bucket> buckets_;
  std::vector<Place> places_;
  int pass_ = kNoPass;
  size_t next_ = 0;      // bucket to travel
  size_t advanced_ = 0;  // buckets whose compressed sums have been made
  size_t settled_ = 0;   // buckets whose averages have been written
};

}  // namespace plimsoll::shard
