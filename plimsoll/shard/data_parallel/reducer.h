// Averages gradients over the ranks while backward() computes the rest of them.
#pragma once

#include <ATen/core/TensorBody.h>
#include <c10/core/UndefinedTensorImpl.h>

#include <memory>
#include <vector>

#include "plimsoll/shard/average/averaging.h"
#include "plimsoll/shard/average/compressed_average.h"
#include "plimsoll/shard/communicator/communicator.h"

namespace plimsoll::shard {

struct ReducerOptions {
  double bucket_cap_mb = 25;  // gradients that travel together, in FP32; the first to be ready travel in 1 MB
  Compression compression = Compression::kNone;  // FP32 alone where there are owners
  // For each parameter the rank that gets its gradient, which the others then have no more. None: all get all.
  std::vector<int64_t> owners = {};
  std::vector<at::Tensor> frozen = {};  // parameters of the model that do not train: an error if they do later on
};

// Parameters in reverse order, which is about the order in which backward() reaches them, in buckets. A bucket travels
// when all before it have left and all its gradients are there, so that the ranks agree on the order.
//
// A pass begins with its first gradient. Gradients of passes inside it, which a recomputation that calls backward()
// makes, add up on the rank and travel at its end, as those without sync do. An exception ends a pass; the next one
// begins anew.
class Reducer : public std::enable_shared_from_this<Reducer> {
 public:
  Reducer(std::vector<at::Tensor> parameters, std::shared_ptr<const Communicator> ranks, const ReducerOptions& options);

  // Hooks, which the parameters have until detach().
  void attach();
  void detach();

  // Bytes that one rank sends in one pass.
  int64_t sent_bytes() const;

  // What compression left out of each parameter's gradient, in order; empty without compression.
  std::vector<CompressedAverage::LeftOut> left_out() const;

  bool sync = true;  // false: gradients add up on each rank by itself

 private:
  static constexpr int64_t kAllRanks = -1;
  // Behind the flags of a bucket: set by ranks that had begun an even number of rounds before this one, and an odd one.
  static constexpr int64_t kMarks = 2;
  using StrongTensor = c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

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
    // The gradients, behind them for each member how many ranks have one, and kMarks.
    at::Tensor values;
    Pending sum;
    std::unique_ptr<CompressedAverage> compressed;  // instead of the sum, or none

    bool is_for(int64_t rank) const { return owner == kAllRanks || owner == rank; }
  };
  struct Place {
    size_t bucket, member;
  };

  // What one parameter has while a pass is under way, and from one to the next.
  struct Gradient {
    bool added_up = false;               // .grad holds what this rank alone has added up
    bool taken = false;                  // in a bucket of this round
    at::Tensor held;                     // its memory, for the average
    at::Tensor aside;                    // the average of an earlier pass, which is not averaged again
    at::Tensor late;                     // of passes inside this one, after a gradient that was taken
    WeakTensor average{StrongTensor()};  // that was put into .grad
  };

  void fill_buckets(double bucket_cap_mb);
  void ready(size_t index);
  void set_aside(size_t index);
  void ensure_pass();
  void begin_round();
  void take(size_t index, at::Tensor grad);
  void send();
  void advance();
  void finish();
  void finish_round();
  void send_late();
  void settle();
  void wait_for_averages(Bucket& bucket) const;
  void expect_one_pass(const Bucket& bucket) const;
  void put(size_t index, const at::Tensor& average);
  void allocate(Bucket& bucket) const;
  at::Tensor slice(const Bucket& bucket, const Member& member) const;
  at::Tensor slice_of(size_t index);
  bool has_average(size_t index) const;
  bool is_mine(size_t index) const { return owners_.empty() || owners_[index] == ranks_->rank(); }

  std::vector<at::Tensor> parameters_;
  std::shared_ptr<const Communicator> ranks_;
  Averaging averaging_;
  std::vector<int64_t> owners_;  // empty: all ranks
  std::vector<Bucket> buckets_;
  std::vector<Place> places_;
  std::vector<at::Tensor> frozen_;
  std::vector<Gradient> gradients_;     // of the parameters
  std::vector<unsigned> before_hooks_;  // of those that this rank owns
  int pass_ = 0;                        // autograd's number of the pass that is under way
  std::weak_ptr<const void> end_;       // of that pass, which autograd alone keeps
  int64_t begun_ = 0;                   // rounds of which something was sent
  bool adds_ = false;                   // averages are added to what .grad has
  size_t next_ = 0;                     // bucket to travel
  size_t advanced_ = 0;                 // buckets whose compressed sums have been made
  size_t settled_ = 0;                  // buckets whose averages have been written
};

}  // namespace plimsoll::shard
