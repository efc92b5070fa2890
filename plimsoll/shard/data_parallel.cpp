#include "plimsoll/shard/data_parallel.h"

#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "plimsoll/shard/averaging.h"
#include "plimsoll/shard/same_model.h"

namespace plimsoll::shard {
namespace {

constexpr double kFirstBucketMb = 1;  // so that the first sum starts early

int64_t elements_of(double megabytes) { return static_cast<int64_t>(megabytes * 1024 * 1024 / sizeof(float)); }

}  // namespace

// Parameters in reverse order, which is about the order in which backward() reaches them, in buckets. A bucket travels
// when all before it have left and all its gradients are there, so that the ranks agree on the order.
class DistributedDataParallel::Reducer : public std::enable_shared_from_this<Reducer> {
 public:
  Reducer(std::vector<at::Tensor> parameters, std::shared_ptr<const Communicator> ranks, double bucket_cap_mb)
      : parameters_(std::move(parameters)), ranks_(std::move(ranks)), averaging_(averaging_over(ranks_->size())) {
    int64_t cap = elements_of(std::min(kFirstBucketMb, bucket_cap_mb));
    for (size_t i = parameters_.size(); i-- > 0;) {
      const int64_t numel = parameters_[i].numel();
      if (buckets_.empty() || buckets_.back().elements + numel > cap) {
        if (!buckets_.empty()) cap = elements_of(bucket_cap_mb);
        buckets_.emplace_back();
      }
      Bucket& bucket = buckets_.back();
      bucket.members.push_back({.parameter = i, .offset = bucket.elements});
      bucket.elements += numel;
    }
    places_.resize(parameters_.size());
    for (size_t b = 0; b < buckets_.size(); ++b) {
      for (size_t m = 0; m < buckets_[b].members.size(); ++m) places_[buckets_[b].members[m].parameter] = {b, m};
    }
  }

  void attach() {
    for (size_t i = 0; i < parameters_.size(); ++i) {
      torch::autograd::impl::set_post_acc_grad_hooks(parameters_[i], std::make_unique<Hook>(weak_from_this(), i));
    }
  }
  void detach() {
    for (const at::Tensor& parameter : parameters_) torch::autograd::impl::set_post_acc_grad_hooks(parameter, nullptr);
  }

  bool sync = true;

 private:
  struct Member {
    size_t parameter;
    int64_t offset;  // in the bucket
  };
  struct Bucket {
    std::vector<Member> members;
    int64_t elements = 0;
    int64_t ready = 0;  // members whose gradients are there
    // The gradients, and behind them for each member how many ranks have one.
    at::Tensor values;
    Pending sum;
  };
  struct Place {
    size_t bucket, member;
  };

  struct Hook : torch::autograd::PostAccumulateGradHook {
    Hook(std::weak_ptr<Reducer> reducer, size_t parameter) : reducer_(std::move(reducer)), parameter_(parameter) {}
    void operator()(const at::Tensor& parameter) override {
      const std::shared_ptr<Reducer> reducer = reducer_.lock();
      if (reducer != nullptr && reducer->sync) reducer->ready(parameter_, parameter.grad());
    }

   private:
    std::weak_ptr<Reducer> reducer_;
    size_t parameter_;
  };

  // In the thread of this backward pass.
  void ready(size_t index, const at::Tensor& grad) {
    const at::NoGradGuard no_grad;
    const int pass = torch::autograd::get_current_graph_task_id();
    if (pass != pass_) start(pass);
    TORCH_CHECK(!grad.is_sparse(), "DistributedDataParallel: expected dense gradients, got a sparse one");
    const Place place = places_[index];
    Bucket& bucket = buckets_[place.bucket];
    slice(bucket, bucket.members[place.member]).copy_(grad).div_(averaging_.predivide);
    bucket.values[bucket.elements + static_cast<int64_t>(place.member)].fill_(1);
    ++bucket.ready;
    while (next_ < buckets_.size() && buckets_[next_].ready == static_cast<int64_t>(buckets_[next_].members.size()))
      send();
  }

  // A pass that an exception ended leaves its buckets as they were.
  void start(int pass) {
    pass_ = pass;
    next_ = 0;
    for (Bucket& bucket : buckets_) {
      bucket.sum = {};
      bucket.ready = 0;
      bucket.values = at::zeros({bucket.elements + static_cast<int64_t>(bucket.members.size())}, at::kFloat);
    }
    torch::autograd::Engine::get_default_engine().queue_callback([self = shared_from_this()] { self->finish(); });
  }

  void send() {
    Bucket& bucket = buckets_[next_++];
    bucket.sum = ranks_->all_reduce_(bucket.values);
  }

  void finish() {
    const at::NoGradGuard no_grad;
    while (next_ < buckets_.size()) send();
    for (Bucket& bucket : buckets_) {
      bucket.sum.wait();
      if (averaging_.postdivide != 1) bucket.values.narrow(0, 0, bucket.elements).div_(averaging_.postdivide);
      for (size_t m = 0; m < bucket.members.size(); ++m) {
        const Member& member = bucket.members[m];
        const bool used = bucket.values[bucket.elements + static_cast<int64_t>(m)].item<float>() > 0;
        if (used) write(parameters_[member.parameter], slice(bucket, member));
      }
      bucket.values.reset();
    }
    pass_ = kNoPass;
  }

  at::Tensor slice(const Bucket& bucket, const Member& member) const {
    const at::Tensor& parameter = parameters_[member.parameter];
    return bucket.values.narrow(0, member.offset, parameter.numel()).view(parameter.sizes());
  }

  static void write(at::Tensor& parameter, const at::Tensor& average) {
    at::Tensor& grad = parameter.mutable_grad();
    if (grad.defined()) {
      grad.copy_(average);
    } else {
      grad = average.to(parameter.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
    }
  }

  static constexpr int kNoPass = -1;

  std::vector<at::Tensor> parameters_;
  std::shared_ptr<const Communicator> ranks_;
  Averaging averaging_;
  std::vector<Bucket> buckets_;
  std::vector<Place> places_;
  int pass_ = kNoPass;
  size_t next_ = 0;  // bucket to travel
};

DistributedDataParallel::DistributedDataParallel(torch::nn::Module& module, std::shared_ptr<const Communicator> ranks,
                                                 const DataParallelOptions& options) {
  TORCH_CHECK_VALUE(options.bucket_cap_mb > 0, "DistributedDataParallel: expected bucket_cap_mb > 0, got ",
                    options.bucket_cap_mb);
  expect_same_model(module, *ranks);
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> trained;
  for (const at::Tensor& parameter : module.parameters()) {
    ranks->broadcast_(parameter.detach()).wait();
    if (parameter.requires_grad()) trained.push_back(parameter);
  }
  for (const at::Tensor& buffer : module.buffers()) ranks->broadcast_(buffer.detach()).wait();
  // Of its own: backward() sums while another thread may have collectives, too.
  reducer_ = std::make_shared<Reducer>(std::move(trained), ranks->split("gradients"), options.bucket_cap_mb);
  reducer_->attach();
}

DistributedDataParallel::~DistributedDataParallel() { reducer_->detach(); }

DistributedDataParallel::NoSync::NoSync(DistributedDataParallel& parallel)
    : parallel_(parallel), before_(std::exchange(parallel.reducer_->sync, false)) {}
DistributedDataParallel::NoSync::~NoSync() { parallel_.reducer_->sync = before_; }

}  // namespace plimsoll::shard
