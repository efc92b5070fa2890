// The parameters of a group as one flat array, of which each rank holds a part.
//
// At rest a rank has its part of the masters, which is what an optimizer updates. gather() gives the parameters that
// the model reads their values, in the dtype of the computation; release() takes the memory back, and what autograd
// saved of them finds its values again after the next gather(). Gradients add up for the whole group, in fp32, until
// start_reduce() sends each rank the sum of its part.
#pragma once

#include <ATen/core/TensorBody.h>

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "plimsoll/io/tensor_piece.h"
#include "plimsoll/shard/engine/flat_layout.h"
#include "plimsoll/shard/engine/group_options.h"
#include "plimsoll/shard/engine/sharded_codes.h"
#include "plimsoll/shard/engine/sharded_gradients.h"

namespace plimsoll::shard {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

class ShardedGroup {
 public:
  // parameters: leaves of one dtype, on one device, where masters, gradients and what is gathered are, too. They belong to the group until it is destroyed.
  ShardedGroup(NamedTensors parameters, ShardRanks ranks, const GroupOptions& options);

  const FlatLayout& layout() const { return *layout_; }
  const NamedTensors& parameters() const { return parameters_; }

  // requires_grad may have been set of a leaf, or of the parameters in it; the other follows. Where it differs among
  // the parameters of one leaf, nothing follows, and expect_one_requires_grad() throws.
  void take_requires_grad();
  void expect_one_requires_grad() const;

  // The optimizer's parameters, of one dimension: one if flattened, else one for each parameter. set_leaf: another
  // tensor with the same memory in its place, of any shape, on which gradients are put from now on.
  const std::vector<at::Tensor>& leaves() const { return leaves_; }
  void set_leaf(size_t index, const at::Tensor& leaf);
  void set_averaging(const Averaging& averaging) { gradients_.set_averaging(averaging); }
  // Part of each parameter's master that this rank holds, shared.
  std::vector<io::TensorPiece> pieces() const;

  const ops::RankGroup& gathering_ranks() const { return *ranks_.gather; }

  // A collective: of the weights that the next gather() sends as codes, the amaxes that all ranks use. gather() does it
  // by itself, once more for each group. groups: of the same gathering ranks.
  static void agree_on_amaxes(std::span<ShardedGroup* const> groups);

  // Collectives. keeps_codes: those of the last time, for the backward pass of a forward pass.
  void start_gather(bool keeps_codes = false);
  void gather(bool keeps_codes = false);
  void start_reduce() { gradients_.start_reduce(); }
  void finish_reduce();
  at::Tensor gather_masters() const;  // [numel], of all ranks

  // Memory that holds the parameters while they are gathered.
  std::vector<at::Tensor> memory() const { return codes_ ? std::vector{full_, full_codes_} : std::vector{full_}; }

  void release();
  // The parameters stay gathered for the next forward pass. Codes do not: their scales are those of one pass.
  void keep();
  // release(), unless keep() came last and the masters have not been written since.
  void release_unless_kept();

  // ShardedGradients.
  void add_gradient(size_t parameter, const at::Tensor& grad) { gradients_.add(parameter, grad); }
  void forget_gradients();
  // Gradients of the last backward pass have not travelled. They will, those of parameters that are frozen by then,
  // too.
  void note_unsent_gradients();
  // Whether any travel: those of trained parameters do, and unsent ones.
  bool has_gradients() const;

  // The parameters show `masters` [numel] instead, until it is undefined again.
  void show_masters(const at::Tensor& masters);
  // Takes this rank's part of `masters` [numel] for its master.
  void write_masters(const at::Tensor& masters);

 private:
  bool is_alone() const { return ranks_.size() == 1; }
  std::span<const std::pair<std::string, at::Tensor>> parameters_in(size_t leaf) const;
  bool sends_new_codes() const;
  at::Tensor mine(const at::Tensor& flat) const;  // [numel] -> this rank's part
  std::vector<at::Tensor> views_of(const at::Tensor& flat) const;
  void show(const std::vector<at::Tensor>& values);
  void hide();
  void note_new_masters();
  std::vector<at::Tensor> held_parts() const;
  at::Tensor travelling(bool keeps_codes);  // bytes of this rank
  at::Tensor zeros_of_part(const at::TensorOptions& options) const;

  NamedTensors parameters_;
  ShardRanks ranks_;
  GroupOptions options_;
  std::shared_ptr<const FlatLayout> layout_;
  FlatRange shard_;
  ShardedGradients gradients_;

  at::Tensor master_;  // [part], padded with zeros
  std::vector<at::Tensor> leaves_;
  std::vector<bool> is_trained_, has_unsent_;  // of each leaf
  uint32_t seen_version_;                      // of the masters when the parameters last showed them

  at::Tensor full_;  // [padded], without memory unless gathered; the master itself of one rank in its own dtype
  std::vector<at::Tensor> full_views_;  // the parameters in it
  StreamOrder full_order_;
  std::optional<ShardedCodes> codes_;
  at::Tensor full_codes_;                 // [padded] uint8, the same
  std::vector<at::Tensor> unread_views_;  // the parameters where only codes are there: NaN for whoever reads a value
  bool is_master_ = false;
  bool gathered_ = false;
  bool is_kept_ = false;
  ops::Arriving arriving_;
  bool is_arriving_ = false;
};

}  // namespace plimsoll::shard
