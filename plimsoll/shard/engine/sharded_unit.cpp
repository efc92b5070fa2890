#include "plimsoll/shard/engine/sharded_unit.h"

#include <algorithm>

namespace plimsoll::shard {
namespace {

GroupOptions group_options(const FullyShardedOptions& options, at::ScalarType dtype, int64_t world_size) {
  const at::ScalarType narrow = options.mixed_precision ? at::kHalf : dtype;
  Averaging averaging = options.gradient_predivide_factor
                            ? averaging_over(world_size, *options.gradient_predivide_factor)
                            : averaging_over(world_size);
  if (options.ordered_passes > 0) averaging = {};  // divided once, after the sum over all passes
  return {.compute_dtype = options.compute_dtype.value_or(narrow),
          .reduce_dtype = options.reduce_dtype,
          .averaging = averaging,
          .flatten = options.flatten_parameters,
          .ordered_passes = options.ordered_passes,
          .offload_folder = options.offload_folder};
}

// Codes are on the CPU alone, and so are files in memory.
void expect_one_device(const NamedTensors& parameters, const FullyShardedOptions& options) {
  if (parameters.empty()) return;
  const auto& [first_name, first] = parameters.front();
  TORCH_CHECK_VALUE(!first.is_meta(), "FullyShardedDataParallel: expected parameters with values, got ", first_name,
                    " on meta");
  for (const auto& [name, parameter] : parameters) {
    TORCH_CHECK_VALUE(parameter.device() == first.device(),
                      "FullyShardedDataParallel: expected all parameters of an instance on one device, got ",
                      first_name, " on ", first.device(), " and ", name, " on ", parameter.device());
    TORCH_CHECK_VALUE(parameter.is_cpu() || !options.layer_of || options.layer_of(name) == nullptr,
                      "FullyShardedDataParallel: expected ", name, ", which travels as codes, on the CPU, got it on ",
                      parameter.device());
  }
  TORCH_CHECK_VALUE(first.is_cpu() || !options.offload_folder,
                    "FullyShardedDataParallel: expected parameters on the CPU where they wait in a folder, got ",
                    first_name, " on ", first.device());
}

}  // namespace

ShardedUnit::ShardedUnit(const NamedTensors& parameters, const ShardRanks& ranks, const FullyShardedOptions& options)
    : options_(options) {
  for (const at::ScalarType dtype : {options.compute_dtype.value_or(at::kFloat), options.reduce_dtype})
    TORCH_CHECK_VALUE(at::isFloatingType(dtype), "FullyShardedDataParallel: expected a dtype of real numbers, got ",
                      dtype);
  TORCH_CHECK_VALUE(!options.ordered_passes || options.reduce_dtype == at::kFloat,
                    "FullyShardedDataParallel: expected gradients in fp32 where their order is fixed, got ",
                    options.reduce_dtype);
  expect_one_device(parameters, options);
  struct Set {
    NamedTensors parameters;
    ShardedCodes::States layers;  // of all or of none
  };
  std::vector<Set> sets;
  for (const auto& item : parameters) {
    const auto layer = options.layer_of ? options.layer_of(item.first) : nullptr;
    const auto belongs = [&](const Set& set) {
      const at::Tensor& other = set.parameters.front().second;
      return other.scalar_type() == item.second.scalar_type() && other.requires_grad() == item.second.requires_grad() &&
             set.layers.empty() == (layer == nullptr);
    };
    auto set = std::ranges::find_if(sets, belongs);
    if (set == sets.end()) set = sets.insert(set, Set{});
    set->parameters.push_back(item);
    if (layer != nullptr) set->layers.push_back(layer);
  }
  for (Set& set : sets) {
    const at::ScalarType dtype = set.parameters.front().second.scalar_type();
    GroupOptions group = group_options(options, dtype, ranks.size());
    group.weights_of = std::move(set.layers);
    groups_.emplace_back(std::move(set.parameters), ranks, group);
  }
}

void ShardedUnit::take_requires_grad() {
  for (ShardedGroup& group : groups_) {
    group.take_requires_grad();
    group.expect_one_requires_grad();
  }
}

void ShardedUnit::note_unsent_gradients() {
  for (ShardedGroup& group : groups_) group.note_unsent_gradients();
}

void ShardedUnit::set_averaging(const Averaging& averaging) {
  TORCH_CHECK(options_.ordered_passes == 0,
              "set_averaging: expected a unit without a fixed order of sums (ordered_passes = 0), got ",
              options_.ordered_passes);
  for (ShardedGroup& group : groups_) group.set_averaging(averaging);
}

void ShardedUnit::start_gather(bool keeps_codes) {
  for (ShardedGroup& group : groups_) group.start_gather(keeps_codes);
}

void ShardedUnit::gather(bool keeps_codes) {
  start_gather(keeps_codes);
  for (ShardedGroup& group : groups_) group.gather(keeps_codes);
}

void ShardedUnit::release() {
  for (ShardedGroup& group : groups_) group.release();
}

void ShardedUnit::keep() {
  for (ShardedGroup& group : groups_) group.keep();
}

void ShardedUnit::release_unless_kept() {
  for (ShardedGroup& group : groups_) group.release_unless_kept();
}

void ShardedUnit::start_reduce() {
  for (ShardedGroup& group : groups_) {
    if (group.has_gradients()) group.start_reduce();
  }
}

void ShardedUnit::finish_reduce() {
  for (ShardedGroup& group : groups_) {
    if (group.has_gradients()) group.finish_reduce();
  }
}

}  // namespace plimsoll::shard
