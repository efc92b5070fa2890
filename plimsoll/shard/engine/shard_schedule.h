// Schedule of a model's units: when their parameters come and go, and when their gradients travel. It knows tensors and
// units, no modules: whoever runs the model says before and after each unit's forward pass; for the backward pass it
// has hooks.
//
// All ranks run the same units in the same order. Which parameters of a unit they use may differ. Autograd runs the hooks of
// a device on a thread of its own, beside those of the CPU, so calls wait for one another.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "plimsoll/shard/engine/sharded_unit.h"
#include "plimsoll/shard/engine/unit_pass.h"

namespace plimsoll::shard {

// The phase of a unit. The unit's backward pass is over (kAfterBackward) until that of the model is.
enum class UnitPhase { kIdle, kForward, kBackward, kAfterBackward };

class ShardSchedule : public std::enable_shared_from_this<ShardSchedule> {
 public:
  // units: the outermost first. borrowed: of each unit others whose parameters its module reads, too.
  static std::shared_ptr<ShardSchedule> create(std::vector<std::shared_ptr<ShardedUnit>> units,
                                               std::vector<std::vector<size_t>> borrowed = {});
  ~ShardSchedule();
  ShardSchedule(const ShardSchedule&) = delete;
  ShardSchedule& operator=(const ShardSchedule&) = delete;

  const std::vector<std::shared_ptr<ShardedUnit>>& units() const { return units_; }

  void before_forward(size_t unit);
  // outputs: of the unit, those that may need a gradient among them.
  void after_forward(size_t unit, at::TensorList outputs);

  // false: the gradients of a backward pass stay on this rank, and travel with those of the first pass after it is true
  // again. Throws where the order of sums is fixed.
  void set_sync(bool sync);
  bool sync() const { return sync_; }

  // A backward pass is under way.
  bool in_backward() const { return in_backward_; }

  UnitPhase phase(size_t unit) const;

  // The hooks that wait for the gradients of a unit's parameters, anew where somebody has replaced them.
  void attach(size_t unit);

 private:
  // Gradients and passes that a backward pass has still to bring for a unit.
  struct Awaited {
    int64_t passes = 0;      // forward passes that read its parameters, with nodes left to run
    int64_t unrecorded = 0;  // those without a graph, which reentrant checkpoints run again
    int64_t gradients = 0;   // of its parameters
    bool is_nothing() const { return passes == 0 && unrecorded == 0 && gradients == 0; }
  };

  ShardSchedule(std::vector<std::shared_ptr<ShardedUnit>> units, std::vector<std::vector<size_t>> borrowed);
  void begin_step();
  void expect_one_run_again();
  ForwardPass end_forward(size_t unit);
  void before_backward(UnitPass& pass);
  void take_exit(UnitPass& pass);
  void take_gradient(size_t unit, size_t group, size_t parameter);
  void agree_on_amaxes();
  std::vector<size_t> read_by(size_t unit) const;
  void enter_task();
  void begin_backward();
  void await_passes(bool is_nested);
  void await_gradients();
  void abandon_backward();
  void finish_backward();
  void release_after_backward(size_t unit);
  void note(size_t unit);
  bool is_sent(size_t unit) const;
  void settle(size_t unit);
  void reduce_ready();
  void send(size_t unit);
  void finish_sent();
  void prefetch_forward(size_t unit);
  void prefetch_backward(size_t unit);

  std::recursive_mutex mutex_;
  std::vector<std::shared_ptr<ShardedUnit>> units_;
  std::vector<std::vector<size_t>> borrowed_;
  std::vector<int> readers_;       // of each unit: forward passes under way
  std::vector<ForwardPass> open_;  // forward passes under way, the outermost first
  std::vector<std::weak_ptr<UnitPass>> recorded_;
  std::vector<size_t> order_;           // units that have run since gradients last travelled, as they first began
  std::vector<size_t> previous_order_;  // of the time before that
  bool sync_ = true;
  bool in_backward_ = false;

  // The rest is about the backward pass that is under way; vectors hold one element a unit.
  std::vector<int> tasks_;  // autograd's numbers of it and of backward passes inside it
  std::vector<Awaited> awaited_;
  std::vector<bool> has_begun_;    // gathered
  std::vector<bool> came_late_;    // gradients came after others had travelled
  size_t open_before_ = 0;         // forward passes that were under way when it began
  size_t next_ = 0;                // of order_ reversed: whose gradients travel next
  std::optional<size_t> sent_;     // whose gradients are on their way
  bool brings_gradients_ = false;  // false: torch.autograd.grad, of other tensors than parameters
  int runs_again_in_ = -1;         // autograd's number of the last one that ran the outermost unit again
};

}  // namespace plimsoll::shard
