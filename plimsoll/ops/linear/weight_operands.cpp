#include "plimsoll/ops/linear/weight_operands.h"

#include <c10/util/Exception.h>

#include <utility>

namespace plimsoll::ops {
namespace {

using recipe::GemmKind;
using recipe::Role;

int64_t version_of(const at::Tensor& weight) { return static_cast<int64_t>(weight._version()); }

WeightOperands of_first_microbatch(const at::Tensor& weight, const LinearScaling& scaling, OperandMaker& maker) {
  TORCH_CHECK(scaling.state != nullptr,
              "linear: expected a state that keeps the weight of the first microbatch, got none");
  WeightCache& cache = scaling.state->weight_cache;
  const recipe::OperandRecipe operand = scaling.recipe->operand(Role::kWeight, GemmKind::kOutput);
  const int64_t version = version_of(weight);
  if (*scaling.is_first_microbatch) {
    cache.operands = maker.make(weight, Role::kWeight, {.output = true, .grad_input = true});
    cache.recipe = operand;
    cache.version = version;
    cache.packed = pack_weight(cache.operands.output);
  }
  TORCH_CHECK(cache.operands.output.data.defined() && cache.recipe == operand,
              "linear: expected is_first_microbatch = true under this recipe before false, got false");
  TORCH_CHECK(cache.version == version,
              "linear: expected the weight that is_first_microbatch = true has seen (version ", cache.version,
              "), got one changed since (version ", version, ")");
  return {cache.operands, cache.packed};
}

// Inference tensors have no version counter.
bool may_keep(const at::Tensor& weight, const LinearScaling& scaling, WeightUse use) {
  return scaling.state != nullptr && !use.training && !use.grad_input && !weight.is_inference();
}

std::optional<InferenceWeight::Kept> kept_for_inference(const at::Tensor& weight, const LinearScaling& scaling,
                                                        OperandMaker& maker) {
  LinearState& state = *scaling.state;
  const bool delayed = scaling.recipe->delayed() != nullptr;
  const WeightKey key = {.operand = scaling.recipe->operand(Role::kWeight, GemmKind::kOutput),
                         .delayed_scale = delayed ? current_scale(state.slot(Role::kWeight)) : 0.0f,
                         .version = version_of(weight),
                         .data = weight.const_data_ptr(),
                         .isa = runtime::matmul_isa()};
  bool is_new = false;
  std::optional<InferenceWeight::Kept> kept = state.inference_weight.find(weight, key, [&] {
    is_new = true;
    ScaledTensor operand = maker.make(weight, Role::kWeight, {.output = true}).output;
    return InferenceWeight::Made{std::move(operand), maker.last_seen()};
  });
  if (kept && !is_new && kept->made.seen) maker.report(Role::kWeight, *kept->made.seen);
  return kept;
}

}  // namespace

WeightOperands weight_operands(const at::Tensor& weight, const LinearScaling& scaling, OperandMaker& maker,
                               WeightUse use) {
  if (scaling.held_weight.data.defined()) {
    return {maker.make_from(scaling.held_weight, Role::kWeight, {.output = true, .grad_input = use.grad_input}), {}};
  }
  if (scaling.state != nullptr && scaling.state->given_weight.codes.data.defined()) {
    return {maker.take(scaling.state->given_weight, {.output = true, .grad_input = use.grad_input}), {}};
  }
  if (scaling.is_first_microbatch) return of_first_microbatch(weight, scaling, maker);
  WeightOperands weights;
  if (may_keep(weight, scaling, use)) {
    if (std::optional<InferenceWeight::Kept> kept = kept_for_inference(weight, scaling, maker)) {
      weights.operands.output = std::move(kept->made.operand);
      weights.packed = std::move(kept->packed);
      return weights;
    }
  } else if (use.training && scaling.state != nullptr) {
    scaling.state->inference_weight.release();
  }
  weights.operands = maker.make(weight, Role::kWeight, {.output = true, .grad_input = use.grad_input});
  return weights;
}

}  // namespace plimsoll::ops
