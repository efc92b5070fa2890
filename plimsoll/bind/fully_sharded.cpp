// torch.classes.plimsoll.ShardedUnit and ShardSchedule: what plimsoll.shard.FullyShardedDataParallel calls; the factors
// by which all of plimsoll.shard averages, and memory that the file system holds.
#include <torch/custom_class.h>

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "plimsoll/autoscale/scaled_tensor_impl.h"
#include "plimsoll/bind/layer_state.h"
#include "plimsoll/bind/rank_group.h"
#include "plimsoll/bind/shard_checkpoint.h"
#include "plimsoll/bind/shard_library.h"
#include "plimsoll/shard/average/averaging.h"
#include "plimsoll/shard/communicator/same_model.h"
#include "plimsoll/shard/engine/mapped_tensor.h"
#include "plimsoll/shard/engine/shard_schedule.h"
#include "plimsoll/shard/engine/sharded_norm.h"

namespace plimsoll::bind {
namespace {

using shard::ShardedGroup;

struct Unit : torch::CustomClassHolder {
  Unit(shard::ShardRanks its_ranks, std::shared_ptr<shard::ShardedUnit> its_unit)
      : ranks(std::move(its_ranks)), unit(std::move(its_unit)) {}

  void take_requires_grad() {
    for (ShardedGroup& each : unit->groups()) each.take_requires_grad();
  }

  ShardedGroup& group(int64_t index) { return unit->groups().at(static_cast<size_t>(index)); }

  std::vector<std::vector<std::string>> groups() {
    std::vector<std::vector<std::string>> result;
    for (const ShardedGroup& one : unit->groups()) {
      result.emplace_back();
      for (const auto& [name, parameter] : one.parameters()) result.back().push_back(name);
    }
    return result;
  }

  shard::ShardRanks ranks;
  std::shared_ptr<shard::ShardedUnit> unit;
};

using UnitPointer = c10::intrusive_ptr<Unit>;

// reduce: the ranks of `gather`, in an order of their own or in the same.
// states: of the layer whose weight a parameter is, as layer_state() takes it, or none.
UnitPointer new_unit(const std::vector<std::string>& names, at::TensorList parameters,
                     const c10::List<std::vector<at::Tensor>>& states, const RanksPointer& gather,
                     const RanksPointer& reduce, std::optional<at::ScalarType> compute_dtype,
                     at::ScalarType reduce_dtype, bool reshard_after_forward, bool disable_reshard_on_root,
                     bool flatten_parameters, bool prefetch, std::optional<double> gradient_predivide_factor,
                     int64_t ordered_passes, const std::optional<std::string>& offload_path) {
  TORCH_CHECK_VALUE(names.size() == parameters.size() && names.size() == states.size(),
                    "FullyShardedDataParallel: expected a name and states of each of ", parameters.size(),
                    " parameters, got ", names.size(), " names and ", states.size(), " states");
  shard::ShardRanks ranks{
      .gather = gather->communicator, .reduce = reduce->communicator, .rank = gather->communicator->rank()};
  shard::NamedTensors named;
  std::unordered_map<std::string, std::shared_ptr<ops::LinearState>> layers;
  for (size_t i = 0; i < names.size(); ++i) {
    TORCH_CHECK_VALUE(!autoscale::is_scaled(parameters[i]),
                      "FullyShardedDataParallel: expected plain parameters, got scaled ones; call plimsoll.autoscale "
                      "afterwards");
    named.emplace_back(names[i], parameters[i]);
    const std::vector<at::Tensor> state = states.get(i);
    if (!state.empty()) layers.emplace(names[i], layer_state(state));
  }
  const std::string setup = c10::str(compute_dtype ? c10::toString(*compute_dtype) : "stored", " ", reduce_dtype, " ",
                                     reshard_after_forward, " ", flatten_parameters, " ", layers.size());
  if (gather->communicator->is_connected()) shard::expect_same_tensors(named, setup, *ranks.gather);
  const shard::FullyShardedOptions options = {.reshard_after_forward = reshard_after_forward,
                                              .disable_reshard_on_root = disable_reshard_on_root,
                                              .compute_dtype = compute_dtype,
                                              .reduce_dtype = reduce_dtype,
                                              .flatten_parameters = flatten_parameters,
                                              .gradient_predivide_factor = gradient_predivide_factor,
                                              .prefetch = prefetch,
                                              .ordered_passes = ordered_passes,
                                              .layer_of =
                                                  [&](const std::string& parameter) {
                                                    const auto found = layers.find(parameter);
                                                    return found == layers.end() ? nullptr : found->second;
                                                  },
                                              .offload_folder = offload_path};
  auto unit = std::make_shared<shard::ShardedUnit>(named, ranks, options);
  return c10::make_intrusive<Unit>(std::move(ranks), std::move(unit));
}

struct Schedule : torch::CustomClassHolder {
  // borrowed: of each unit the numbers of others.
  Schedule(const std::vector<UnitPointer>& units, const std::vector<std::vector<int64_t>>& borrowed)
      : ranks(first_of(units)->ranks) {
    TORCH_CHECK_VALUE(borrowed.size() == units.size(), "ShardSchedule: expected the units that each of ", units.size(),
                      " borrows from, got ", borrowed.size());
    std::vector<std::shared_ptr<shard::ShardedUnit>> all;
    for (const UnitPointer& one : units) all.push_back(one->unit);
    std::vector<std::vector<size_t>> others(units.size());
    for (size_t i = 0; i < units.size(); ++i) {
      for (const int64_t number : borrowed[i]) others[i].push_back(place(number, units.size()));
    }
    schedule = shard::ShardSchedule::create(std::move(all), std::move(others));
  }

  static const UnitPointer& first_of(const std::vector<UnitPointer>& units) {
    TORCH_CHECK_VALUE(!units.empty(), "ShardSchedule: expected one unit or more, got none");
    return units.front();
  }
  static size_t place(int64_t unit, size_t units) {
    TORCH_CHECK_VALUE(unit >= 0 && unit < static_cast<int64_t>(units), "ShardSchedule: expected a unit below ", units,
                      ", got ", unit);
    return static_cast<size_t>(unit);
  }
  size_t place(int64_t unit) const { return place(unit, schedule->units().size()); }

  shard::ShardRanks ranks;
  std::shared_ptr<shard::ShardSchedule> schedule;
};

using SchedulePointer = c10::intrusive_ptr<Schedule>;

std::tuple<double, double> averaging(int64_t world_size) {
  TORCH_CHECK_VALUE(world_size >= 1, "averaging: expected one rank or more, got ", world_size);
  const shard::Averaging factors = shard::averaging_over(world_size);
  return {factors.predivide, factors.postdivide};
}

}  // namespace

void register_fully_sharded(torch::Library& library) {
  library.class_<Unit>("ShardedUnit")
      .def("groups", &Unit::groups)
      .def("set_averaging",
           [](const UnitPointer& self, double predivide, double postdivide) {
             self->unit->set_averaging({.predivide = predivide, .postdivide = postdivide});
           },
           "", {torch::arg("predivide"), torch::arg("postdivide")})
      .def("pieces", [](const UnitPointer& self, int64_t group) { return pieces_of(self->group(group).pieces()); })
      .def("take_requires_grad", &Unit::take_requires_grad)
      .def("leaves", [](const UnitPointer& self, int64_t group) { return self->group(group).leaves(); })
      .def("set_leaf", [](const UnitPointer& self, int64_t group, int64_t index,
                          const at::Tensor& leaf) { self->group(group).set_leaf(static_cast<size_t>(index), leaf); })
      .def("release", [](const UnitPointer& self, int64_t group) { self->group(group).release(); })
      .def("gather_masters", [](const UnitPointer& self, int64_t group) { return self->group(group).gather_masters(); })
      .def("show_masters",
           [](const UnitPointer& self, int64_t group, const std::optional<at::Tensor>& masters) {
             self->group(group).show_masters(masters.value_or(at::Tensor()));
           })
      .def("write_masters", [](const UnitPointer& self, int64_t group, const at::Tensor& masters) {
        self->group(group).write_masters(masters);
      });
  library.def(
      "sharded_unit(str[] names, Tensor[] parameters, Tensor[][] states, *, "
      "__torch__.torch.classes.plimsoll.Ranks gather, __torch__.torch.classes.plimsoll.Ranks reduce, "
      "ScalarType? compute_dtype, ScalarType reduce_dtype, bool reshard_after_forward, bool disable_reshard_on_root, "
      "bool flatten_parameters, bool prefetch, float? gradient_predivide_factor, int ordered_passes, "
      "str? offload_path) -> __torch__.torch.classes.plimsoll.ShardedUnit",
      &new_unit);
  library.class_<Schedule>("ShardSchedule")
      .def(torch::init<const std::vector<UnitPointer>&, const std::vector<std::vector<int64_t>>&>())
      .def("before_forward",
           [](const SchedulePointer& self, int64_t unit) { self->schedule->before_forward(self->place(unit)); })
      .def("after_forward",
           [](const SchedulePointer& self, int64_t unit, const std::vector<at::Tensor>& outputs) {
             self->schedule->after_forward(self->place(unit), outputs);
           })
      .def("set_sync",
           [](const SchedulePointer& self, bool sync) {
             const bool before = self->schedule->sync();
             self->schedule->set_sync(sync);
             return before;
           })
      .def("in_backward", [](const SchedulePointer& self) { return self->schedule->in_backward(); })
      .def("phase", [](const SchedulePointer& self,
                       int64_t unit) { return static_cast<int64_t>(self->schedule->phase(self->place(unit))); })
      .def("attach", [](const SchedulePointer& self, int64_t unit) { self->schedule->attach(self->place(unit)); })
      .def("clip_grad_norm_",
           [](const SchedulePointer& self, double max_norm, double norm_type) {
             return shard::clip_gradients_(self->schedule->units(), self->ranks, max_norm, norm_type);
           },
           "", {torch::arg("max_norm"), torch::arg("norm_type")});
  library.def("mapped_zeros(int[] sizes, ScalarType dtype, str folder) -> Tensor",
              [](at::IntArrayRef sizes, at::ScalarType dtype, const std::string& folder) {
                return shard::mapped_zeros(sizes, dtype, folder);
              });
  library.def("release_pages(Tensor tensor) -> ()", [](const at::Tensor& tensor) { shard::release_pages(tensor); });
  library.def("averaging(int world_size) -> (float predivide, float postdivide)", &averaging);
}

}  // namespace plimsoll::bind
