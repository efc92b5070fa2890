#include "plimsoll/shard/engine/fully_sharded.h"

#include <algorithm>
#include <set>
#include <string>
#include <unordered_map>

#include "plimsoll/shard/communicator/same_model.h"
#include "plimsoll/shard/engine/sharded_norm.h"

namespace plimsoll::shard {
namespace {

// Groups of its own, because ranks may reduce and gather in another order. Only Gloo can be split, so on a device all
// travels in one.
ShardRanks orders_for(const torch::nn::Module& module, const std::shared_ptr<const Communicator>& ranks) {
  const std::vector<at::Tensor> parameters = module.parameters();
  if (std::ranges::all_of(parameters, [](const at::Tensor& each) { return each.is_cpu(); })) {
    return {.gather = ranks->split("parameters"), .reduce = ranks->split("sharded gradients"), .rank = ranks->rank()};
  }
  return {.gather = ranks, .reduce = ranks, .rank = ranks->rank()};
}

}  // namespace

FullyShardedDataParallel::FullyShardedDataParallel(torch::nn::Module& module,
                                                   const std::vector<std::shared_ptr<torch::nn::Module>>& units,
                                                   std::shared_ptr<const Communicator> ranks,
                                                   const FullyShardedOptions& options) {
  expect_same_model(module, *ranks);
  ranks_ = orders_for(module, ranks);
  std::unordered_map<const c10::TensorImpl*, std::string> names;
  for (const auto& item : module.named_parameters()) names.emplace(item.value().unsafeGetTensorImpl(), item.key());
  std::set<const c10::TensorImpl*> taken;
  const auto unit_of = [&](const torch::nn::Module& part) {
    NamedTensors parameters;
    for (const at::Tensor& parameter : part.parameters()) {
      const c10::TensorImpl* const impl = parameter.unsafeGetTensorImpl();
      TORCH_CHECK_VALUE(names.contains(impl), "FullyShardedDataParallel: expected units inside the module");
      if (taken.insert(impl).second) parameters.emplace_back(names.at(impl), parameter);
    }
    return std::make_shared<ShardedUnit>(parameters, ranks_, options);
  };
  std::vector<std::shared_ptr<ShardedUnit>> all = {nullptr};
  for (const auto& unit : units) all.push_back(unit_of(*unit));
  all.front() = unit_of(module);
  schedule_ = ShardSchedule::create(std::move(all));
}

NamedTensors FullyShardedDataParallel::parameters() const {
  NamedTensors result;
  size_t flat = 0;
  for (const auto& unit : schedule_->units()) {
    for (const ShardedGroup& group : unit->groups()) {
      for (size_t i = 0; i < group.leaves().size(); ++i) {
        const bool flattened = unit->options().flatten_parameters;
        result.emplace_back(flattened ? "flat_param_" + std::to_string(flat++) : group.parameters()[i].first,
                            group.leaves()[i]);
      }
    }
  }
  return result;
}

std::vector<io::TensorPiece> FullyShardedDataParallel::pieces() const {
  std::vector<io::TensorPiece> result;
  for (const auto& unit : schedule_->units()) {
    for (const ShardedGroup& group : unit->groups()) {
      for (io::TensorPiece& piece : group.pieces()) result.push_back(std::move(piece));
    }
  }
  return result;
}

std::vector<at::Tensor> FullyShardedDataParallel::memory() const {
  std::vector<at::Tensor> result;
  for (const auto& unit : schedule_->units()) {
    for (const ShardedGroup& group : unit->groups()) {
      for (const at::Tensor& whole : group.memory()) result.push_back(whole);
    }
  }
  return result;
}

double FullyShardedDataParallel::clip_grad_norm_(double max_norm, double norm_type) {
  return clip_gradients_(schedule_->units(), ranks_, max_norm, norm_type);
}

double FullyShardedDataParallel::grad_norm(double norm_type) const {
  return global_norm(schedule_->units(), ranks_, norm_type);
}

FullyShardedDataParallel::FullParameters::FullParameters(ShardSchedule& schedule, bool writes_back)
    : writes_back_(writes_back) {
  TORCH_CHECK(!schedule.in_backward(), "full_parameters: expected no backward pass under way");
  for (const auto& unit : schedule.units()) {
    for (ShardedGroup& group : unit->groups()) {
      group.take_requires_grad();
      masters_.emplace_back(&group, group.gather_masters());
      group.show_masters(masters_.back().second);
    }
  }
}

FullyShardedDataParallel::FullParameters::~FullParameters() {
  for (auto& [group, masters] : masters_) {
    if (writes_back_) group->write_masters(masters);
    group->show_masters({});
    group->take_requires_grad();
  }
}

}  // namespace plimsoll::shard
