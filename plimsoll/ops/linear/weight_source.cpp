#include "plimsoll/ops/linear/weight_source.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include <utility>

#include "plimsoll/ops/linear/fp4_codes.h"
#include "plimsoll/ops/linear/linear_scaling.h"
#include "plimsoll/ops/linear/no_kept_weights.h"
#include "plimsoll/ops/linear/operand_maker.h"
#include "plimsoll/recipe/operand.h"
#include "plimsoll/runtime/unexpected.h"

namespace plimsoll::ops {
namespace {

using recipe::GemmKind;
using recipe::Role;

int64_t version_of(const at::Tensor& weight) { return static_cast<int64_t>(weight._version()); }

recipe::OperandRecipe output_operand(const LinearScaling& scaling) {
  return scaling.recipe->operand(Role::kWeight, GemmKind::kOutput);
}

WeightOperands of_output(ScaledTensor operand, PackedWeight packed) {
  WeightOperands result;
  result.operands.output = std::move(operand);
  result.packed = std::move(packed);
  return result;
}

// Whether an operand is the tensor itself.
bool is_plain(const ScaledTensor& operand, const at::Tensor& weight) {
  return operand.data.defined() && operand.data.scalar_type() == weight.scalar_type() &&
         operand.data.const_data_ptr() == weight.const_data_ptr();
}

GemmSet wanted(WeightUse use) { return {.output = true, .grad_input = use.grad_input}; }

}  // namespace

HeldWeight::HeldWeight(std::vector<CodeSource> sources, HeldOptions options)
    : options_(options), sources_(std::move(sources)) {
  TORCH_CHECK_VALUE(options.has_gradient || options.granularity == recipe::kPerRow,
                    "held codes: expected a scale a row for inference alone, got blocks");
  const bool is_e2m1 = options.kind == CodeKind::kNvfp4 || options.kind == CodeKind::kMxfp4;
  TORCH_CHECK_VALUE(!options.has_gradient || !is_e2m1 || sources_.front().is_stored(),
                    "held codes: expected E4M3 for a layer whose input may have a gradient, got E2M1");
}

std::shared_ptr<const PackedWeights> HeldWeight::packed() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (packed_ == nullptr) {
    packed_ = std::make_shared<const PackedWeights>(sources_, options_.kind);
    sources_.clear();
  }
  return packed_;
}

ScaledTensor HeldWeight::codes() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!codes_.data.defined()) {
    const at::NoGradGuard no_grad;
    codes_ = made_codes();
    sources_.clear();
  }
  return codes_;
}

ScaledTensor HeldWeight::made_codes() const {
  const auto from_e2m1 = [&](format::Fp4Scaling scaling) { return as_e4m3(fp4_codes_of(sources_, scaling), scaling); };
  switch (options_.kind) {
    case CodeKind::kE4m3Rows:
      return codes_of(sources_, options_.granularity);
    case CodeKind::kE4m3Blocks:
      return codes_of(sources_, recipe::kBlock1x128);
    case CodeKind::kNvfp4:
      return from_e2m1(format::Fp4Scaling::kNvfp4);
    case CodeKind::kMxfp4:
      return from_e2m1(format::Fp4Scaling::kMxfp4);
  }
  runtime::unexpected("held codes: kind", static_cast<int>(options_.kind));
}

std::optional<WeightOperands> HeldWeight::for_inference() {
  if (options_.has_gradient) return std::nullopt;
  const auto weights = packed();
  return of_output(weights->operand(), weights->packed());
}

WeightOperands HeldWeight::operands(bool grad_input) {
  if (options_.has_gradient) {
    WeightOperands result = of_output(codes(), {});
    if (grad_input) result.operands.grad_input = result.operands.output;
    return result;
  }
  TORCH_CHECK(!grad_input, "linear: expected no gradients of a layer that holds codes alone");
  WeightOperands operands = *for_inference();
  TORCH_CHECK(!operands.packed.data.defined() || operands.packed.isa == runtime::matmul_isa(),
              "linear: expected the instruction set that the held codes were packed for, got another");
  return operands;
}

WeightOperands WeightSource::of_microbatch(const at::Tensor& weight, const LinearScaling& scaling, OperandMaker& maker,
                                           WeightUse use) {
  const recipe::OperandRecipe operand = output_operand(scaling);
  const int64_t version = version_of(weight);
  const bool draws = is_random(scaling.recipe->stored_operand(Role::kWeight, GemmKind::kGradInput));
  if (*scaling.is_first_microbatch) {
    microbatch_.operands = maker.make(weight, Role::kWeight, {.output = true, .grad_input = !draws});
    microbatch_.recipe = operand;
    microbatch_.version = version;
    microbatch_.packed = pack(microbatch_.operands.output);
  }
  TORCH_CHECK(microbatch_.operands.output.data.defined() && microbatch_.recipe == operand,
              "linear: expected is_first_microbatch = true under this recipe before false, got false");
  TORCH_CHECK(microbatch_.version == version,
              "linear: expected the weight that is_first_microbatch = true has seen (version ", microbatch_.version,
              "), got one changed since (version ", version, ")");
  WeightOperands result = {microbatch_.operands, microbatch_.packed};
  if (draws && use.grad_input) {
    result.operands.grad_input = maker.make_again(weight, Role::kWeight, GemmKind::kGradInput, {});
  }
  return result;
}

std::optional<WeightSource::Kept> WeightSource::of_inference(const at::Tensor& weight, const LinearScaling& scaling,
                                                             OperandMaker& maker) {
  const bool delayed = scaling.recipe->delayed() != nullptr;
  const Key key = {.operand = output_operand(scaling),
                   .delayed_scale = delayed ? scaling.state->weight.value_on_host() : recipe::kNoScale};
  const std::lock_guard<std::mutex> lock(mutex_);
  const bool same_weight = seen_.see(weight);
  if (!same_weight || key != key_) {
    key_ = key;
    kept_.reset();
    return std::nullopt;
  }
  if (kept_) {
    if (kept_->seen) maker.report(Role::kWeight, *kept_->seen);
    return kept_;
  }
  ScaledTensor operand = maker.make(weight, Role::kWeight, {.output = true}).output;
  PackedWeight packed = pack(operand);
  kept_ = {.operand = std::move(operand), .seen = maker.last_seen(), .packed = std::move(packed)};
  seen_.hold(weight);
  return kept_;
}

PackedWeight WeightSource::pack(const ScaledTensor& operand) const {
  const bool is_read_as_it_is = operand.data.is_cuda() || (in_place_ && is_read_in_place(operand));
  return is_read_as_it_is ? PackedWeight() : pack_weight(operand);
}

void WeightSource::forget_inference() {
  const std::lock_guard<std::mutex> lock(mutex_);
  seen_.forget();
  kept_.reset();
}

WeightOperands WeightSource::operands(const at::Tensor& weight, const LinearScaling& scaling, OperandMaker& maker,
                                      WeightUse use) {
  if (held_ != nullptr) return held_->operands(use.grad_input);
  if (use.training) forget_inference();
  if (given_.defined()) return {maker.take(given_, wanted(use)), {}};
  if (scaling.is_first_microbatch) return of_microbatch(weight, scaling, maker, use);
  // Inference tensors have no version counter.
  if (!use.training && !use.grad_input && !weight.is_inference() && !NoKeptWeights::is_in_force()) {
    if (std::optional<Kept> kept = of_inference(weight, scaling, maker)) {
      return of_output(std::move(kept->operand), std::move(kept->packed));
    }
  }
  return {maker.make(weight, Role::kWeight, wanted(use)), {}};
}

std::optional<WeightOperands> WeightSource::packed(const at::Tensor& weight) {
  if (held_ != nullptr) return held_->for_inference();
  if (given_.defined() || weight.is_inference()) return std::nullopt;
  if (microbatch_.version == version_of(weight) && is_plain(microbatch_.operands.output, weight)) {
    return of_output(microbatch_.operands.output, microbatch_.packed);
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!seen_.remembers(weight)) {
    seen_.see(weight);
    kept_.reset();
  }
  if (!kept_ || !is_plain(kept_->operand, weight)) return std::nullopt;
  return of_output(kept_->operand, kept_->packed);
}

WeightOperands weight_operands(const at::Tensor& weight, const LinearScaling& scaling, OperandMaker& maker,
                               WeightUse use) {
  const WeightSource* const source = scaling.state == nullptr ? nullptr : &scaling.state->weight_source;
  const bool is_codes =
      scaling.given_weight.defined() || (source != nullptr && (source->held() != nullptr || source->is_given()));
  TORCH_CHECK(!is_codes || !scaling.recipe->has_four_bits(), "linear: expected a weight as values under recipe ",
              scaling.recipe->name(), ", which makes codes of both directions of it, got codes in its place");
  if (scaling.given_weight.defined()) return {maker.take(scaling.given_weight, wanted(use)), {}};
  if (scaling.state != nullptr) return scaling.state->weight_source.operands(weight, scaling, maker, use);
  TORCH_CHECK(!scaling.is_first_microbatch,
              "linear: expected a state that keeps the weight of the first microbatch, got none");
  return {maker.make(weight, Role::kWeight, wanted(use)), {}};
}

}  // namespace plimsoll::ops
