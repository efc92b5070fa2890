// Averages gradients over the ranks while backward() computes the rest of them: for all ranks, or each for the one that
// updates its parameter.
#pragma once

#include <ATen/core/TensorBody.h>
#include <c10/core/UndefinedTensorImpl.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "plimsoll/shard/average/averaging.h"
#include "plimsoll/shard/communicator/communicator.h"
#include "plimsoll/shard/data_parallel/gradient_bucket.h"

namespace plimsoll::shard {

struct ReducerOptions {
  std::string caller = "DistributedDataParallel";  // in errors
  std::string trains_by = "its constructor";       // what notices that requires_grad has changed, in errors
  BucketSizes buckets = {};
  at::ScalarType reduce_dtype = at::kFloat;  // they are summed in it; FP32 where they are compressed
  Compression compression = Compression::kNone;
};

// Parameters in buckets (gradient_bucket.h). A bucket travels
// when all before it have left and all its gradients are there, so that the ranks agree on the order.
//
// A pass is the outermost one that begin() has seen, or that of the first gradient. Gradients of passes inside it,
// which a recomputation that calls backward() makes, add up on the rank and travel at its end, as those without sync
// do. An exception ends a pass; the next one begins anew.
class Reducer : public std::enable_shared_from_this<Reducer> {
 public:
  Reducer(std::shared_ptr<const Communicator> ranks, ReducerOptions options);
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  // Averages, from now on, those of a model's parameters that require a gradient now; the same on all ranks. owners:
  // of each parameter the rank that gets its gradient, which the others then have no more; none: all get all. What a
  // parameter that ends training has added up is dropped.
  void train(std::vector<at::Tensor> parameters, std::vector<int64_t> owners = {});

  // Calls ready() by itself, until this is destroyed. Other hooks that wait for a parameter's gradient end.
  void attach();
  // The gradient of parameter `index` is in .grad. In the thread of its backward pass.
  void ready(size_t index);
  // Averages what has added up on the ranks, without a pass. A collective. Throws where no rank has any, and during a
  // pass.
  void reduce();
  // A pass may be under way: what follows of it, in passes inside it, too, belongs together.
  void begin();

  // Throws where a parameter requires a gradient that came to do so after train().
  void expect_trained() const;

  // Bytes that one rank sends in one pass.
  int64_t sent_bytes() const;

  // Remainder of compressing a parameter's gradient, or nothing.
  std::optional<CompressedAverage::LeftOut> left_out(size_t index) const;

  bool has_owners() const { return !owners_.empty(); }
  bool is_mine(size_t index) const { return owners_.empty() || owners_[index] == ranks_->rank(); }
  const at::Tensor& parameter(size_t index) const { return parameters_[index]; }
  const Communicator& ranks() const { return *ranks_; }

  bool sync = true;  // false: gradients add up on each rank by itself

 private:
  static constexpr size_t kNowhere = static_cast<size_t>(-1);
  using StrongTensor = c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

  struct Place {
    size_t bucket = kNowhere, member = 0;
  };

  // State of one parameter while a pass is under way, and from one pass to the next.
  struct Gradient {
    bool added_up = false;               // .grad holds what this rank alone has added up
    bool taken = false;                  // in a bucket of this round
    at::Tensor held;                     // its memory, for the average
    at::Tensor aside;                    // the average of an earlier pass, which is not averaged again
    at::Tensor late;                     // of passes inside this one, after a gradient that was taken
    WeakTensor average{StrongTensor()};  // that was put into .grad
    std::optional<unsigned> hook;        // which sets the average aside
  };

  void hook(size_t index);
  void unhook(size_t index);
  void set_aside(size_t index);
  void ensure_pass();
  void begin_pass();
  void begin_round();
  void take(size_t index, at::Tensor grad);
  void send();
  void finish();
  void take_what_waits();
  void finish_round();
  void send_late();
  void settle();
  void expect_one_pass(const GradientBucket& bucket) const;
  void put(size_t index, const at::Tensor& average);
  at::Tensor slice(const GradientBucket& bucket, const GradientBucket::Member& member) const;
  at::Tensor slice_of(size_t index);
  bool has_average(size_t index) const;
  bool is_trained(size_t index) const { return places_[index].bucket != kNowhere; }

  std::shared_ptr<const Communicator> ranks_;
  ReducerOptions options_;
  Averaging averaging_;
  // Parameters of the model, and the values that go with each.
  std::vector<at::Tensor> parameters_;
  std::vector<int64_t> owners_;  // empty: all ranks
  std::vector<Place> places_;
  std::vector<Gradient> gradients_;
  std::vector<GradientBucket> buckets_;
  int pass_ = 0;                   // autograd's number of the pass that is under way
  std::weak_ptr<const void> end_;  // of that pass, which autograd alone keeps
  int64_t begun_ = 0;              // rounds of which something was sent
  bool attached_ = false;          // hooks of this call ready()
  bool travels_ = false;           // gradients of the pass do
  bool adds_ = false;              // averages are added to what .grad has
  size_t next_ = 0;                // bucket to travel
  size_t advanced_ = 0;            // buckets whose compressed sums have been made
  size_t settled_ = 0;             // buckets whose averages have been written
};

}  // namespace plimsoll::shard
