// Linear layer that the ranks of a group share. Sources: Shoeybi et al., Megatron-LM, 2019; Korthikanti et al.,
// Reducing Activation Recomputation in Large Transformer Models, 2022 (sequence).
//
//                       column (weight [out / ranks, in])     row (weight [out, in / ranks])
//   output              its features of this rank             summed over the ranks
//   gradient of input   summed over the ranks                 its features of this rank
//
// With `sequence` the tokens are split wherever the features are not: what would be summed to all ranks is summed to
// each rank's tokens alone, and the input (row: the gradient of the output) is gathered first, as codes.
#pragma once

#include <ATen/core/TensorBody.h>

#include <memory>
#include <vector>

#include "plimsoll/ops/ranks/rank_group.h"
#include "plimsoll/recipe/operand.h"

namespace plimsoll::ops {

enum class ParallelMode : uint8_t { kNone, kColumn, kRow };

struct LinearParallel {
  std::shared_ptr<const RankGroup> group = {};
  ParallelMode mode = ParallelMode::kNone;
  bool sequence = false;

  // Whether this rank has its tokens of the operand alone, and the products want all.
  bool gathers(recipe::Role role) const;

  // The sizes that the products see for an input of these sizes: with all tokens.
  std::vector<int64_t> product_sizes(at::IntArrayRef input_sizes) const;

  // A product of all tokens -> what the layer gives: kRow sums outputs, kColumn gradients of the input.
  at::Tensor output(const at::Tensor& product) const;
  at::Tensor grad_input(const at::Tensor& product) const;

 private:
  at::Tensor summed(const at::Tensor& product) const;
};

// x: the layer's input, or undefined. A bias is added once, to the sum: not by a layer that is split by rows.
void check_parallel(const LinearParallel& parallel, const at::Tensor& x, const at::Tensor& bias, const char* op);

}  // namespace plimsoll::ops
