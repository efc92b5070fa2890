// When the parameters of a model's units come and go, and when their gradients travel. It knows tensors and units, no
// modules: whoever runs the model says before and after each unit's forward pass; for the backward pass it has hooks.
//
// All ranks run the same units in the same order. Which parameters of a unit they use may differ.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "plimsoll/shard/sharded_unit.h"

namespace plimsoll::shard {

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

 private:
  struct Hook;

  ShardSchedule(std::vector<std::shared_ptr<ShardedUnit>> units, std::vector<std::vector<size_t>> borrowed);
  void attach();
  void before_backward(size_t unit);
  void take_gradient(size_t unit, size_t group, size_t parameter);
  void agree_on_amaxes();
  std::vector<size_t> read_by(size_t unit) const;
  void begin_backward();
  void abandon_backward();
  void finish_backward();
  void note(size_t unit);
  void reduce_ready();
  void send(size_t unit);
  void finish_sent();
  void prefetch_after(size_t unit, const std::vector<size_t>& order, int64_t step);

  std::vector<std::shared_ptr<ShardedUnit>> units_;
  std::vector<std::vector<size_t>> borrowed_;
  std::vector<int> readers_;            // of each unit: forward passes under way
  std::vector<size_t> order_;           // units that have run since gradients last travelled, as they first began
  std::vector<size_t> previous_order_;  // of the time before that
  std::vector<int64_t> waiting_for_;    // gradients that this backward pass has not brought yet
  size_t next_ = 0;                     // of order_ reversed: whose gradients travel next
  std::optional<size_t> sent_;          // whose gradients are on their way
  bool sync_ = true;
  bool in_backward_ = false;
};

}  // namespace plimsoll::shard
