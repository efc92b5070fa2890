// A part of a model whose parameters come and go together: that of one FullyShardedDataParallel.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "plimsoll/shard/engine/sharded_group.h"

namespace plimsoll::shard {

struct FullyShardedOptions {
  bool reshard_after_forward = true;
  bool disable_reshard_on_root = true;  // the outermost unit keeps its parameters from forward to backward
  bool mixed_precision = false;
  std::optional<at::ScalarType> compute_dtype = {};  // fp16 of mixed precision, else that of the parameters
  at::ScalarType reduce_dtype = at::kFloat;          // that gradients travel in; sums are made in fp32
  bool flatten_parameters = true;
  std::optional<double> gradient_predivide_factor = {};  // averaging.h
  bool prefetch = true;                                  // the next unit's parameters travel while this one computes
  // "Deterministic": GroupOptions::ordered_passes.
  int64_t ordered_passes = 0;
  // The layer whose weight this parameter is, or none: GroupOptions::weights_of.
  std::function<std::shared_ptr<ops::LinearState>(const std::string& name)> layer_of = {};
  std::optional<std::filesystem::path> offload_folder = {};  // GroupOptions
};

class ShardedUnit {
 public:
  // parameters: leaves on one device. Throws where they are not, and where options are for the CPU alone. Groups are made
  // of those of one dtype that are trained, or that are not.
  ShardedUnit(const NamedTensors& parameters, const ShardRanks& ranks, const FullyShardedOptions& options);

  const FullyShardedOptions& options() const { return options_; }
  std::vector<ShardedGroup>& groups() { return groups_; }
  const std::vector<ShardedGroup>& groups() const { return groups_; }

  // ShardedGroup, for all groups. Throws where parameters of one leaf differ.
  void take_requires_grad();
  void note_unsent_gradients();

  // Other factors from the next reduction on. Throws where the order of sums is fixed, which divides once.
  void set_averaging(const Averaging& averaging);

  // The same for all groups of the unit.
  void start_gather(bool keeps_codes = false);  // ShardedGroup
  void gather(bool keeps_codes);
  void release();
  void keep();
  void release_unless_kept();
  void start_reduce();
  void finish_reduce();

 private:
  FullyShardedOptions options_;
  std::vector<ShardedGroup> groups_;
};

}  // namespace plimsoll::shard
