// A model of which each rank holds a part: of the parameters, the gradients and so of the optimizer's state. Parts of
// it (units) get their whole parameters for as long as they compute.
//
//   models::Gpt model(config);
//   shard::FullyShardedDataParallel sharded(*model, {block0, block1}, ranks);
//   Optimizer optimizer(sharded.parameters());   // 1-D parts of the masters
//   sharded.forward([&] { return model->loss(tokens, targets); }).backward();  // block0 calls before(1), after(1, ...)
//   sharded.clip_grad_norm_(1.0);
//   optimizer.step();
//
// C++ modules have no hooks: whoever runs a unit's forward pass calls before() and after() around it, or run().
// Parameters of a unit can be read between these, and inside full_parameters().
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "plimsoll/shard/communicator/communicator.h"
#include "plimsoll/shard/engine/shard_schedule.h"

namespace plimsoll::shard {

class FullyShardedDataParallel {
 public:
  // A collective. units: submodules, each a unit; one that holds another stands behind it. What is in none of them is
  // unit 0, and units[i] is unit i + 1. Throws c10::Error, which names the ranks, where models differ in names, shapes
  // or dtypes. Parameters on a device need ranks with a backend for it, and are gathered and reduced in one order, which all
  // ranks must keep. The parameters belong to this until it is destroyed, and each rank's own values are kept of its parts.
  FullyShardedDataParallel(torch::nn::Module& module, const std::vector<std::shared_ptr<torch::nn::Module>>& units,
                           std::shared_ptr<const Communicator> ranks, const FullyShardedOptions& options = {});
  FullyShardedDataParallel(const FullyShardedDataParallel&) = delete;
  FullyShardedDataParallel& operator=(const FullyShardedDataParallel&) = delete;

  // Parameters for the optimizer: parts of the masters with the names of the model's parameters. Of flattened groups:
  // one for each group, called flat_param_N.
  NamedTensors parameters() const;
  // Every parameter of the model, with what this rank holds of it.
  std::vector<io::TensorPiece> pieces() const;

  // ShardedGroup::memory of all.
  std::vector<at::Tensor> memory() const;

  void before(size_t unit) { schedule_->before_forward(unit); }
  void after(size_t unit, at::TensorList outputs) { schedule_->after_forward(unit, outputs); }

  // f() -> the tensor that the unit computes.
  template <class Forward>
  at::Tensor run(size_t unit, Forward f) {
    before(unit);
    const at::Tensor output = f();
    after(unit, output);
    return output;
  }
  template <class Forward>
  at::Tensor forward(Forward f) {
    return run(0, f);
  }

  // The norm of all gradients together, before they are clipped. A collective.
  double clip_grad_norm_(double max_norm, double norm_type = 2);
  double grad_norm(double norm_type = 2) const;

  // Inside, gradients stay on their rank; those of the first backward() after it travel with them.
  class NoSync {
   public:
    explicit NoSync(ShardSchedule& schedule) : schedule_(schedule), before_(schedule.sync()) {
      schedule.set_sync(false);
    }
    ~NoSync() { schedule_.set_sync(before_); }
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    ShardSchedule& schedule_;
    bool before_;
  };
  NoSync no_sync() { return NoSync(*schedule_); }

  // Inside, the model's parameters show the masters, whole and exact. Collective.
  class FullParameters {
   public:
    // writes_back: what they are changed to becomes the masters.
    FullParameters(ShardSchedule& schedule, bool writes_back);
    ~FullParameters();
    FullParameters(const FullParameters&) = delete;
    FullParameters& operator=(const FullParameters&) = delete;

   private:
    std::vector<std::pair<ShardedGroup*, at::Tensor>> masters_;
    bool writes_back_;
  };
  FullParameters full_parameters(bool writes_back = true) { return {*schedule_, writes_back}; }

 private:
  ShardRanks ranks_;
  std::shared_ptr<ShardSchedule> schedule_;
};

}  // namespace plimsoll::shard
