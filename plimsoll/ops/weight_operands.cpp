#include "plimsoll/ops/weight_operands.h"

#include <c10/util/Exception.h>

namespace plimsoll::ops {

using recipe::GemmKind;
using recipe::Role;

WeightOperands weight_operands(const at::Tensor& weight, const LinearScaling& scaling, OperandMaker& maker,
                               bool wants_grad_input) {
  if (!scaling.is_first_microbatch) {
    return {maker.make(weight, Role::kWeight, {.output = true, .grad_input = wants_grad_input})};
  }
  TORCH_CHECK(scaling.state != nullptr,
              "linear: expected a state that keeps the weight of the first microbatch, got none");
  WeightCache& cache = scaling.state->weight_cache;
  const recipe::OperandRecipe operand = scaling.recipe->operand(Role::kWeight, GemmKind::kOutput);
  const auto version = static_cast<int64_t>(weight._version());
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
  return {cache.operands, &cache.packed};
}

}  // namespace plimsoll::ops
