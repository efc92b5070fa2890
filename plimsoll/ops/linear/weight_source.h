// Source of the weight in the products of a linear layer, and what is kept of it from call to call.
#pragma once

#include <ATen/core/TensorBody.h>

#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "plimsoll/ops/linear/packed_weights.h"
#include "plimsoll/ops/tensor/gemm.h"
#include "plimsoll/ops/tensor/seen_tensors.h"
#include "plimsoll/ops/watch/operand_seen.h"
#include "plimsoll/recipe/operand.h"

namespace plimsoll::ops {

class OperandMaker;
struct LinearScaling;

// Codes of a weight that somebody else made as the layer would have (tensor_codes.h).
struct GivenCodes {
  ScaledTensor codes = {};       // undefined: nobody gave any
  ScaledTensor grad_input = {};  // for a product that reads others there (by rows, MX); undefined: `codes` serve both
  AmaxSlot amax = {};            // of the values that they were made of, which is then recorded; or nobody records it

  bool defined() const { return codes.data.defined(); }
};

struct WeightOperands {
  Operands operands;
  PackedWeight packed;  // of operands.output; undefined: the product packs, or reads it in place
};

struct HeldOptions {
  // Inference alone reads packed codes, with a scale a row or of another kind. For gradients of the layer's input the
  // codes are kept as they are stored, and each product packs them; stored E2M1 codes become E4M3 (as_e4m3).
  bool has_gradient = false;
  CodeKind kind = CodeKind::kE4m3Rows;                // E2M1 with has_gradient of stored codes alone
  recipe::Granularity granularity = recipe::kPerRow;  // by blocks with has_gradient alone
};

// Codes that stand in a weight's place: E4M3 or E2M1, of the rows of all sources, made when they are first needed. Safe to use
// from several threads.
class HeldWeight {
 public:
  explicit HeldWeight(std::vector<CodeSource> sources, HeldOptions options = {});

  // An error for grad_input without has_gradient, and under another instruction set than the codes were packed for.
  WeightOperands operands(bool grad_input);
  // `output` for inference; none with has_gradient.
  std::optional<WeightOperands> for_inference();
  CodeKind kind() const { return options_.kind; }

 private:
  ScaledTensor codes();
  ScaledTensor made_codes() const;
  std::shared_ptr<const PackedWeights> packed();

  const HeldOptions options_;
  std::mutex mutex_;
  std::vector<CodeSource> sources_;  // until they have been read
  std::shared_ptr<const PackedWeights> packed_;
  ScaledTensor codes_;  // with has_gradient
};

struct WeightUse {
  bool grad_input = false;  // operands.grad_input is wanted
  bool training = false;    // the caller's grad mode
};

// A layer's. The first of these that holds gives the operands:
//   1. codes that it holds: no value of the weight tensor is read, whatever the recipe
//   2. codes given to it, until they are taken back: likewise
//   3. is_first_microbatch: true makes and keeps them, false reads what was kept, an error if the weight has changed. Codes
//      for grad_input that depend on random numbers are made for each call: a rotation is that of the call's gradients
//   4. outside training, from the second call in a row on that sees the same tensor unchanged: kept, quantized and packed
//   5. else they are made now
// Two threads may be outside training at once; otherwise it is not thread-safe, as the module that owns it is not.
class WeightSource {
 public:
  void hold(std::shared_ptr<HeldWeight> held) { held_ = std::move(held); }
  const std::shared_ptr<HeldWeight>& held() const { return held_; }

  // The weight's values stay in memory for somebody else, as those of an embedding: nothing is packed beside them where
  // few rows do as well without.
  void read_in_place() { in_place_ = true; }

  void give(GivenCodes codes) { given_ = std::move(codes); }
  void take_back() { given_ = {}; }
  bool is_given() const { return given_.defined(); }

  // Activation recompute: the first microbatch's operands of the first run; given codes come and go with what gathers
  // them, so the second run reads those of its own time.
  void keep_microbatch_of(const WeightSource& first_run) { microbatch_ = first_run.microbatch_; }
  void give_as(const WeightSource& other) { given_ = other.given_; }

  WeightOperands operands(const at::Tensor& weight, const LinearScaling& scaling, OperandMaker& maker, WeightUse use);

  // The weight, packed or read in place, as inference without a recipe multiplies by it now, where that is kept:
  // `output` alone. For products made outside the layer.
  std::optional<WeightOperands> packed(const at::Tensor& weight);

 private:
  // Operands that is_first_microbatch = true keeps for the calls with false.
  struct Microbatch {
    Operands operands;
    recipe::OperandRecipe recipe;  // of operands.output
    int64_t version = -1;          // of the weight (its version counter) when it was quantized
    PackedWeight packed;
  };
  // Choices by which the operand kept for inference was made.
  struct Key {
    recipe::OperandRecipe operand;
    float delayed_scale = 0;  // 0 where the recipe has none

    friend bool operator==(const Key&, const Key&) = default;
  };
  struct Kept {
    ScaledTensor operand;
    std::optional<OperandSeen> seen;  // by the watch, while it was made
    PackedWeight packed;
  };

  WeightOperands of_microbatch(const at::Tensor& weight, const LinearScaling& scaling, OperandMaker& maker,
                               WeightUse use);
  std::optional<Kept> of_inference(const at::Tensor& weight, const LinearScaling& scaling, OperandMaker& maker);
  void forget_inference();
  PackedWeight pack(const ScaledTensor& operand) const;

  bool in_place_ = false;
  std::shared_ptr<HeldWeight> held_;
  GivenCodes given_;
  Microbatch microbatch_;

  std::mutex mutex_;  // of what follows
  SeenTensors seen_;
  Key key_;
  std::optional<Kept> kept_;
};

// Codes given for this call, else from the source of the layer's state, else made now.
WeightOperands weight_operands(const at::Tensor& weight, const LinearScaling& scaling, OperandMaker& maker,
                               WeightUse use);

}  // namespace plimsoll::ops
