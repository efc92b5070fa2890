// Weights that travel as FP8 codes, one byte an element, where the recipe of the scope gives each one scale: every rank
// quantizes its part with the scale that one process would use for the whole.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "plimsoll/ops/linear/linear_scaling.h"
#include "plimsoll/shard/engine/flat_layout.h"

namespace plimsoll::shard {

// FP8 codes of one ShardedGroup; every parameter in it is a layer's weight.
class ShardedCodes {
 public:
  using States = std::vector<std::shared_ptr<ops::LinearState>>;

  explicit ShardedCodes(States states) : states_(std::move(states)), amaxes_(states_.size()), scales_(states_.size()) {}

  // Whether the scope's recipe lets them travel in codes: never under a controller, which may have any layer in its wide
  // format.
  static bool has_recipe();

  // parts: what this rank holds of each. Their amaxes as bits, which are ordered as magnitudes are, NaN above all.
  static std::vector<int32_t> amax_bits(const std::vector<at::Tensor>& parts);
  // The largest of all ranks, for the next choose(), which a recipe with codes needs.
  void set_amaxes(std::span<const int32_t> bits);
  bool has_amaxes() const { return has_amaxes_; }

  // Chooses how weights travel until the next choose(): in codes, or (false) as values.
  bool choose();
  bool chosen() const { return chosen_; }

  // [sum of parts]
  at::Tensor encode(const std::vector<at::Tensor>& parts) const;

  // The layers read these codes [numel] instead of their weights.
  void give(const at::Tensor& codes, const FlatLayout& layout) const;
  void take_back() const;

 private:
  States states_;
  std::vector<ops::AmaxSlot> amaxes_;
  std::vector<ops::ScaleRef> scales_;
  format::Format format_ = format::Format::kE4m3;
  bool chosen_ = false;
  bool has_amaxes_ = false;
};

}  // namespace plimsoll::shard
