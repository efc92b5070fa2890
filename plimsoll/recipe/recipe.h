// Recipes: the source of each operand's scale, and the time when it is chosen. A recipe is a value: it holds no tensor
// and no state.
// Names and defaults follow Transformer Engine. Contract: docs/numerics.md, "recipes".
//
//   Recipe recipe = by_name("fp8");
//   Recipe wide = DelayedScaling{.margin = 1, .override_linear_precision = {.grad_weight = true}};
//   OperandRecipe input = recipe.operand(Role::kInput, GemmKind::kOutput);  // e4m3, delayed, per tensor
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "plimsoll/recipe/delayed_scaling.h"
#include "plimsoll/recipe/operand.h"

namespace plimsoll::recipe {

// No codes: the products run in this format (kFp32, kBf16 or kFp16).
struct HighPrecision {
  Format format = Format::kFp32;
};

// Scale from the tensor's own amax: kPerTensor, or kPerRow (a row of the logical matrix [rows, reduction]).
struct CurrentScaling {
  Fp8Format fp8_format = Fp8Format::kHybrid;
  Granularity granularity = kPerTensor;
  bool power_of_two = false;
  LinearOverride override_linear_precision = {};
  BackwardOverride backward_override = BackwardOverride::kNone;
  Format high_precision_format = Format::kBf16;
};

// Inputs and gradients in 1x128 blocks, weights in 128x128 blocks.
struct BlockScaling {
  Fp8Format fp8_format = Fp8Format::kE4m3;
  bool power_of_two = true;
  LinearOverride override_linear_precision = {};
  BackwardOverride backward_override = BackwardOverride::kNone;
  Format high_precision_format = Format::kBf16;
};

// OCP microscaling: 1x32 blocks with E8M0 scales.
struct Mxfp8 {
  Fp8Format fp8_format = Fp8Format::kE4m3;
  ScaleRounding rounding = ScaleRounding::kUp;
  LinearOverride override_linear_precision = {};
  BackwardOverride backward_override = BackwardOverride::kNone;
  Format high_precision_format = Format::kBf16;
};

// NVFP4: E2M1 codes with an E4M3 scale for 16 elements along the reduction (16 x 16 of a weight, so that both of its
// products read the same values) and one FP32 scale for the tensor, all from their own amax. Gradients are rounded
// stochastically; in grad_weight both operands are rotated along the tokens by a random Hadamard matrix of 16 whose
// signs each call draws anew.
struct Nvfp4Scaling {
  bool four_over_six = false;  // "nvfp4-4over6": a block's amax becomes 6 or 4, whichever loses less
  // "ms-eden": `output` as above; both operands of both backward products are rotated along the sum by a random Hadamard
  // matrix of 128, their elements rounded to nearest and the scales of their blocks of 16 corrected and rounded
  // stochastically (format::MsEden). Excludes four_over_six.
  bool ms_eden = false;
  bool disable_rht = false;  // no rotation
  bool disable_stochastic_rounding = false;
  bool disable_2d_quantization = false;  // weights in blocks of 1 x 16
  LinearOverride override_linear_precision = {};
  BackwardOverride backward_override = BackwardOverride::kNone;
  Format high_precision_format = Format::kBf16;
};

// OCP microscaling with E2M1 inputs and weights, 1x32 blocks with E8M0 scales; gradients are MXFP8's, in E4M3.
struct Mxfp4Scaling {
  ScaleRounding rounding = ScaleRounding::kUp;
  LinearOverride override_linear_precision = {};
  BackwardOverride backward_override = BackwardOverride::kNone;
  Format high_precision_format = Format::kBf16;
};

using Scaling =
    std::variant<HighPrecision, DelayedScaling, CurrentScaling, BlockScaling, Mxfp8, Nvfp4Scaling, Mxfp4Scaling>;

// A scaling for each product, in the order of GemmKind, by its place in `scalings`.
struct ProductScalings {
  std::vector<Scaling> scalings;
  std::array<size_t, 3> of_product = {};
};

class Recipe {
 public:
  Recipe() = default;  // fp32

  // From any of the seven. Throws std::invalid_argument if an argument is out of its range.
  template <class T>
  requires(!std::same_as<std::remove_cvref_t<T>, Recipe> && std::constructible_from<Scaling, T>)
      Recipe(T&& scaling)  // NOLINT(google-explicit-constructor)
      : scaling_(std::forward<T>(scaling)) {
    check();
  }

  // Throws std::invalid_argument, too, unless the scalings agree on the high-precision format, have no BackwardOverride,
  // and one of them at the most has eight-bit codes with one scale for a tensor.
  explicit Recipe(ProductScalings products);

  // "fp32", "bf16", "fp16", "fp8", "fp8-current", "fp8-row", "fp8-block", "mxfp8", "nvfp4", "nvfp4-4over6", "ms-eden" or
  // "mxfp4"; "mixed": products differ.
  std::string_view name() const;
  bool is_mixed() const { return products_ != nullptr; }
  // The scaling of all products; where they differ, that of `output`.
  const Scaling& scaling() const { return of(GemmKind::kOutput); }
  // The arguments of delayed scaling, of all products or of some; nullptr: none has it.
  const DelayedScaling* delayed() const;

  // The recipe of an operand that takes part in that product; throws std::invalid_argument for the others.
  OperandRecipe operand(Role role, GemmKind gemm) const;

  // Operand that is made of the stored tensor for that product, with blocks as they lie in it: operand(), or, under
  // BackwardOverride::kDequantized, the codes of the product `output`, whose values a backward product reads.
  OperandRecipe stored_operand(Role role, GemmKind gemm) const;

  // True if that product runs on operands in high_precision_format().
  bool high_precision(GemmKind gemm) const;
  // True if no product uses codes.
  bool high_precision() const;
  // The format of products without codes, of outputs, and of everything between the products.
  Format high_precision_format() const;

  // True if one set of codes serves both products of the operand. False where blocks run along the reduction (rows,
  // 1x128, MX), since the two products reduce over different dimensions, or where only one of the two uses codes.
  bool shares_codes(Role role) const;

  // True if some product reads E2M1 codes.
  bool has_four_bits() const;
  // True if some operand depends on random numbers: signs of a rotation, stochastic rounding.
  bool is_random() const;

 private:
  void check() const;
  const Scaling& of(GemmKind gemm) const;

  Scaling scaling_;
  std::shared_ptr<const ProductScalings> products_ = nullptr;  // in place of scaling_, where they differ
};

// Names that by_name accepts, in the order in which they are shown.
const std::vector<std::string_view>& names();

// The recipe with its defaults. Throws std::invalid_argument that lists the names, the nearest first.
Recipe by_name(std::string_view name);

// A JSON string (a name), or an object {"name": NAME, argument: value, ...} whose arguments replace the defaults of
// that name. Throws std::invalid_argument: not JSON, an unknown name or argument, a value of another type or out of
// range.
Recipe from_json(std::string_view text);

// The object form with every argument. Throws std::invalid_argument for a recipe with a callable, which JSON cannot
// hold, and for one whose products differ.
std::string to_json(const Recipe& recipe);

}  // namespace plimsoll::recipe
