// The parameters of a group as one flat array, of which each rank holds a part.
//
// At rest a rank has its part of the masters, which is what an optimizer updates. gather() gives the parameters that
// the model reads their values, in the dtype of the computation; release() takes the memory back, and what autograd
// saved of them finds its values again after the next gather(). Gradients add up for the whole group, in fp32, until
// start_reduce() sends each rank the sum of its part.
#pragma once

#include <ATen/core/TensorBody.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "plimsoll/io/tensor_piece.h"
#include "plimsoll/ops/byte_rank_group.h"
#include "plimsoll/shard/averaging.h"
#include "plimsoll/shard/flat_layout.h"
#include "plimsoll/shard/sharded_codes.h"

namespace plimsoll::shard {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// The ranks that share parameters. `reduce` has an order of collectives of its own, or is `gather` again.
struct ShardRanks {
  std::shared_ptr<const ops::ByteRankGroup> gather, reduce;
  int64_t rank = 0;
  int64_t size() const { return gather->size(); }
};

struct GroupOptions {
  at::ScalarType compute_dtype = at::kFloat;  // that parameters are gathered in
  at::ScalarType reduce_dtype = at::kFloat;   // that gradients travel in; sums are made in fp32
  Averaging averaging = {};
  bool flatten = true;  // one parameter for the optimizer; else one for each of the model
  // Backward passes in a step, whose gradients are summed over ranks and passes in one order: that of pass, then rank.
  // The average over both then has the same bits however `passes * ranks` is made up. 0: the order is free, and the
  // sum over passes is no average.
  int64_t ordered_passes = 0;
  // Of the layers whose weights the parameters are, or none: they travel as codes where the recipe allows.
  ShardedCodes::States weights_of = {};
  // Where this rank's masters and gradients wait (mapped_tensor.h). None: in memory.
  std::optional<std::filesystem::path> offload_folder = {};
};

class ShardedGroup {
 public:
  // parameters: leaves of one dtype, of the CPU. They belong to the group until it is destroyed.
  ShardedGroup(NamedTensors parameters, ShardRanks ranks, const GroupOptions& options);

  const FlatLayout& layout() const { return layout_; }
  const NamedTensors& parameters() const { return parameters_; }
  bool trained() const { return trained_; }

  // The optimizer's parameters, of one dimension: one if flattened, else one for each parameter. set_leaf: another
  // tensor with the same memory in its place, on which gradients are put from now on.
  const std::vector<at::Tensor>& leaves() const { return leaves_; }
  void set_leaf(size_t index, const at::Tensor& leaf);
  void set_averaging(const Averaging& averaging) { options_.averaging = averaging; }
  // What this rank holds of each parameter's master, shared.
  std::vector<io::TensorPiece> pieces() const;

  const ops::RankGroup& gathering_ranks() const { return *ranks_.gather; }

  // A collective: of the weights that the next gather() sends as codes, the amaxes that all ranks use. gather() does it
  // by itself, once more for each group. groups: of the same gathering ranks.
  static void agree_on_amaxes(std::span<ShardedGroup* const> groups);

  // Collectives. keeps_codes: those of the last time, for the backward pass of a forward pass.
  void start_gather(bool keeps_codes = false);
  void gather(bool keeps_codes = false);
  void start_reduce();
  void finish_reduce();
  at::Tensor gather_masters() const;  // [numel], of all ranks

  // What holds the parameters while they are gathered.
  std::vector<at::Tensor> memory() const { return codes_ ? std::vector{full_, full_codes_} : std::vector{full_}; }

  void release();
  bool gathered() const { return gathered_; }

  void add_gradient(size_t parameter, const at::Tensor& grad);
  // Those that have not been reduced.
  void forget_gradients();

  // The parameters show `masters` [numel] instead, until it is undefined again.
  void show_masters(const at::Tensor& masters);
  // This rank's part of `masters` [numel] becomes its master.
  void write_masters(const at::Tensor& masters);

 private:
  bool is_alone() const { return ranks_.size() == 1; }
  bool sends_new_codes() const;
  at::Tensor mine(const at::Tensor& flat) const;  // [numel] -> this rank's part
  std::vector<at::Tensor> views_of(const at::Tensor& flat) const;
  void show(const std::vector<at::Tensor>& values);
  void hide();
  void note_new_masters();
  std::vector<at::Tensor> held_parts() const;
  at::Tensor travelling(bool keeps_codes);  // bytes of this rank
  at::Tensor ordered_average(const at::Tensor& terms);
  void put_gradient(const at::Tensor& grad, bool replaces);
  at::Tensor waiting_gradient(const at::Tensor& part, int64_t begin, const at::Tensor& leaf);
  at::Tensor zeros_of_part(at::ScalarType dtype) const;

  NamedTensors parameters_;
  ShardRanks ranks_;
  GroupOptions options_;
  FlatLayout layout_;
  FlatRange shard_;
  bool trained_;
  at::ScalarType sum_dtype_;

  at::Tensor master_;  // [part], padded with zeros
  std::vector<at::Tensor> leaves_;
  uint32_t seen_version_;  // of the masters when the parameters last showed them

  at::Tensor full_;  // [padded], without memory unless gathered; the master itself of one rank in its own dtype
  std::vector<at::Tensor> full_views_;  // the parameters in it
  std::optional<ShardedCodes> codes_;
  at::Tensor full_codes_;                 // [padded] uint8, the same
  std::vector<at::Tensor> unread_views_;  // the parameters where only codes are there: NaN for whoever reads a value
  bool is_master_ = false;
  bool gathered_ = false;
  ops::Arriving arriving_;
  bool is_arriving_ = false;

  at::Tensor waiting_gradients_;  // [part], where the leaves' are; undefined: anywhere
  at::Tensor gradients_;          // [padded], of this rank; undefined: none
  std::vector<bool> has_gradient_;
  ops::Arriving terms_;
  at::Tensor ordered_sum_;                             // [part]
  std::vector<std::pair<at::Tensor, uint32_t>> left_;  // gradients as ordered_average left them, with their versions
};

}  // namespace plimsoll::shard
