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

std::optional<at::ScalarType> dtype_of(std::optional<int64_t> number) {
  return number ? std::optional(static_cast<at::ScalarType>(*number)) : std::nullopt;
}

struct Unit : torch::CustomClassHolder {
  // Dtypes as their numbers. reduce: the ranks of `gather`, in an order of their own or in the same.
  // states: of the layer whose weight a parameter is, as layer_state() takes it, or none.
  Unit(const std::vector<std::string>& names, const std::vector<at::Tensor>& parameters,
       const std::vector<std::vector<at::Tensor>>& states, const RanksPointer& gather, const RanksPointer& reduce,
       std::optional<int64_t> compute_dtype, int64_t reduce_dtype, bool reshard_after_forward,
       bool disable_reshard_on_root, bool flatten_parameters, bool prefetch,
       std::optional<double> gradient_predivide_factor, int64_t ordered_passes,
       const std::optional<std::string>& offload_path) {
    ranks.gather = gather->communicator;
    ranks.reduce = reduce->communicator;
    ranks.rank = gather->communicator->rank();
    shard::NamedTensors named;
    std::unordered_map<std::string, std::shared_ptr<ops::LinearState>> layers;
    for (size_t i = 0; i < names.size(); ++i) {
      TORCH_CHECK_VALUE(!autoscale::is_scaled(parameters.at(i)),
                        "FullyShardedDataParallel: expected plain parameters, got scaled ones; call plimsoll.autoscale "
                        "afterwards");
      named.emplace_back(names[i], parameters.at(i));
      if (!states.at(i).empty()) layers.emplace(names[i], layer_state(states[i]));
    }
    const std::string setup = c10::str(compute_dtype.value_or(-1), " ", reduce_dtype, " ", reshard_after_forward, " ",
                                       flatten_parameters, " ", layers.size());
    shard::expect_same_tensors(named, setup, *ranks.gather);
    unit = std::make_shared<shard::ShardedUnit>(
        named, ranks,
        shard::FullyShardedOptions{.reshard_after_forward = reshard_after_forward,
                                   .disable_reshard_on_root = disable_reshard_on_root,
                                   .compute_dtype = dtype_of(compute_dtype),
                                   .reduce_dtype = static_cast<at::ScalarType>(reduce_dtype),
                                   .flatten_parameters = flatten_parameters,
                                   .gradient_predivide_factor = gradient_predivide_factor,
                                   .prefetch = prefetch,
                                   .ordered_passes = ordered_passes,
                                   .layer_of =
                                       [&](const std::string& parameter) {
                                         const auto found = layers.find(parameter);
                                         return found == layers.end() ? nullptr : found->second;
                                       },
                                   .offload_folder = offload_path});
  }

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

struct Schedule : torch::CustomClassHolder {
  // borrowed: of each unit the numbers of others.
  Schedule(const std::vector<UnitPointer>& units, const std::vector<std::vector<int64_t>>& borrowed)
      : ranks(units.at(0)->ranks) {
    std::vector<std::shared_ptr<shard::ShardedUnit>> all;
    for (const UnitPointer& one : units) all.push_back(one->unit);
    std::vector<std::vector<size_t>> others;
    for (const std::vector<int64_t>& numbers : borrowed) others.emplace_back(numbers.begin(), numbers.end());
    schedule = shard::ShardSchedule::create(std::move(all), std::move(others));
  }

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
      .def(torch::init<const std::vector<std::string>&, const std::vector<at::Tensor>&,
                       const std::vector<std::vector<at::Tensor>>&, const RanksPointer&, const RanksPointer&,
                       std::optional<int64_t>, int64_t, bool, bool, bool, bool, std::optional<double>, int64_t,
                       const std::optional<std::string>&>())
      .def("groups", &Unit::groups)
      .def("set_averaging",
           [](const UnitPointer& self, double predivide, double postdivide) {
             self->unit->set_averaging({.predivide = predivide, .postdivide = postdivide});
           })
      .def("pieces", [](const UnitPointer& self, int64_t group) { return pieces_of(self->group(group).pieces()); })
      .def("take_requires_grad", &Unit::take_requires_grad)
      .def("leaves", [](const UnitPointer& self, int64_t group) { return self->group(group).leaves(); })
      .def("set_leaf", [](const UnitPointer& self, int64_t group, int64_t index,
                          const at::Tensor& leaf) { self->group(group).set_leaf(static_cast<size_t>(index), leaf); })
      .def("gather_masters", [](const UnitPointer& self, int64_t group) { return self->group(group).gather_masters(); })
      .def("show_masters",
           [](const UnitPointer& self, int64_t group, const std::optional<at::Tensor>& masters) {
             self->group(group).show_masters(masters.value_or(at::Tensor()));
           })
      .def("write_masters", [](const UnitPointer& self, int64_t group, const at::Tensor& masters) {
        self->group(group).write_masters(masters);
      });
  library.class_<Schedule>("ShardSchedule")
      .def(torch::init<const std::vector<UnitPointer>&, const std::vector<std::vector<int64_t>>&>())
      .def("before_forward",
           [](const SchedulePointer& self, int64_t unit) { self->schedule->before_forward(static_cast<size_t>(unit)); })
      .def("after_forward",
           [](const SchedulePointer& self, int64_t unit, const std::vector<at::Tensor>& outputs) {
             self->schedule->after_forward(static_cast<size_t>(unit), outputs);
           })
      .def("set_sync", [](const SchedulePointer& self, bool sync) { self->schedule->set_sync(sync); })
      .def("in_backward", [](const SchedulePointer& self) { return self->schedule->in_backward(); })
      .def("clip_grad_norm_", [](const SchedulePointer& self, double max_norm, double norm_type) {
        return shard::clip_gradients_(self->schedule->units(), self->ranks, max_norm, norm_type);
      });
  library.def("mapped_zeros(int[] sizes, ScalarType dtype, str folder) -> Tensor",
              [](at::IntArrayRef sizes, at::ScalarType dtype, const std::string& folder) {
                return shard::mapped_zeros(sizes, dtype, folder);
              });
  library.def("release_pages(Tensor tensor) -> ()", [](const at::Tensor& tensor) { shard::release_pages(tensor); });
  library.def("averaging(int world_size) -> (float predivide, float postdivide)", &averaging);
}

}  // namespace plimsoll::bind
