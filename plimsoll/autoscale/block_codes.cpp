#include "plimsoll/autoscale/block_codes.h"

#include <cmath>
#include <cstdint>
#include <utility>

#include "plimsoll/ops/tensor/quantize.h"
#include "plimsoll/ops/tensor/quantize_fp4.h"
#include "plimsoll/ops/tensor/random_seed.h"
#include "plimsoll/recipe/recipe.h"
#include "plimsoll/runtime/unexpected.h"

namespace plimsoll::autoscale {
namespace {

using recipe::GemmKind;
using recipe::OperandRecipe;
using recipe::Role;

// A product of the recipe that an operand of this role has a part in.
GemmKind product_of(Role role, bool rotates) {
  if (rotates) return GemmKind::kGradWeight;
  return role == Role::kGradOutput ? GemmKind::kGradInput : GemmKind::kOutput;
}

OperandRecipe block_recipe(const BlockOperand& operand, bool rotates) {
  const GemmKind product = product_of(operand.role, rotates);
  switch (operand.format) {
    case ProductFormat::kMxfp8:
      return recipe::Recipe(recipe::Mxfp8{}).operand(operand.role, product);
    case ProductFormat::kNvfp4:
      return recipe::Recipe(recipe::Nvfp4Scaling{}).operand(operand.role, product);
    case ProductFormat::kMxfp4:
      return recipe::Recipe(recipe::Mxfp4Scaling{}).operand(Role::kInput, GemmKind::kOutput);
    case ProductFormat::kData:
    case ProductFormat::kE4m3:
    case ProductFormat::kE5m2:
      break;
  }
  runtime::unexpected("autoscale: format with scales of blocks", static_cast<int>(operand.format));
}

bool is_encoded(const BlockOperand& operand) { return has_block_scales(operand.format) && operand.matrix.numel() > 0; }

bool has_rotation(const std::array<BlockOperand, 2>& operands) {
  for (const size_t gradient : {size_t{0}, size_t{1}}) {
    const BlockOperand &a = operands.at(gradient), &b = operands.at(1 - gradient);
    if (a.format == ProductFormat::kNvfp4 && b.format == ProductFormat::kNvfp4 && a.role == Role::kGradOutput &&
        b.role == Role::kInput)
      return true;
  }
  return false;
}

// The matrix is read as it lies: by rows, or by columns of its transpose.
BlockCodes encode_matrix(const BlockOperand& operand, OperandRecipe recipe, uint64_t seed) {
  const at::Tensor& matrix = operand.matrix;
  const bool turned = matrix.stride(1) != 1 && matrix.stride(0) == 1;
  const at::Tensor stored = turned ? matrix.t() : matrix;
  const ops::Use use = turned ? ops::Use::kTransposed : ops::Use::kAsStored;
  if (turned) std::swap(recipe.granularity.block_rows, recipe.granularity.block_cols);
  if (recipe.format != format::Format::kE2m1) {
    ops::Quantized quantized = ops::quantize(stored, ops::quantize_options(recipe, {}));
    if (!std::isfinite(quantized.amax.read_on_host())) return {};
    return {.codes = std::move(quantized.tensor), .use = use};
  }
  recipe.turned = turned;
  ops::Fp4Operands wanted{.role = operand.role};
  wanted.add(recipe);
  ops::QuantizedFp4 quantized = ops::quantize_fp4(stored, wanted, seed);
  if (!std::isfinite(quantized.amax.read_on_host())) return {};
  return {.codes = std::move(turned ? quantized.turned : quantized.rows), .use = use};
}

uint64_t new_seed() { return static_cast<uint64_t>(ops::draw_seed()); }

std::array<BlockCodes, 2> encode_both(const std::array<BlockOperand, 2>& operands, bool rotates) {
  std::array<BlockCodes, 2> codes;
  const uint64_t seed_of_both = rotates ? new_seed() : 0;
  for (size_t i = 0; i < operands.size(); ++i) {
    if (!is_encoded(operands.at(i))) continue;
    const OperandRecipe recipe = block_recipe(operands.at(i), rotates);
    // Roundings of two gradients do not depend on each other.
    const uint64_t seed = recipe.stochastic && !rotates ? new_seed() : seed_of_both;
    codes.at(i) = encode_matrix(operands.at(i), recipe, seed);
  }
  return codes;
}

}  // namespace

bool has_block_scales(ProductFormat format) {
  return format == ProductFormat::kMxfp8 || format == ProductFormat::kNvfp4 || format == ProductFormat::kMxfp4;
}

std::array<BlockCodes, 2> encode_blocks(const std::array<BlockOperand, 2>& operands) {
  const bool rotates = has_rotation(operands) && is_encoded(operands[0]) && is_encoded(operands[1]);
  std::array<BlockCodes, 2> codes = encode_both(operands, rotates);
  // An operand without codes is not rotated, so the other must not be.
  if (rotates && codes[0].defined() != codes[1].defined()) return encode_both(operands, false);
  return codes;
}

}  // namespace plimsoll::autoscale
