#include "plimsoll/recipe/recipe.h"

#include <iterator>
#include <stdexcept>
#include <string>
#include <utility>

#include "plimsoll/recipe/operand.h"

namespace plimsoll::recipe {
namespace {

constexpr const char* kRoles[] = {"input", "weight", "grad_output"};
constexpr const char* kGemms[] = {"output", "grad_input", "grad_weight"};
static_assert(std::size(kRoles) == static_cast<size_t>(Role::kGradOutput) + 1, "a role has no name");
static_assert(std::size(kGemms) == static_cast<size_t>(GemmKind::kGradWeight) + 1, "a product has no name");

void expect(bool condition, std::string_view what, std::string_view expected, std::string_view got) {
  if (condition) return;
  throw std::invalid_argument(std::string(what) + ": expected " + std::string(expected) + ", got " + std::string(got));
}

void check_format(Fp8Format format, std::string_view what) {
  expect(format != Fp8Format::kE5m2, what, "fp8_format E4M3 or HYBRID",
         "E5M2 (two mantissa bits are too few for inputs and weights)");
}

void check_high_precision(Format format, std::string_view what) {
  const bool known = format == Format::kFp32 || format == Format::kBf16 || format == Format::kFp16;
  expect(known, what, "a high-precision format of fp32, bf16 or fp16", format::info(format).name);
}

struct Check {
  void operator()(const HighPrecision& args) const { check_high_precision(args.format, "HighPrecision"); }
  void operator()(const DelayedScaling& args) const {
    check_fp8(args, "DelayedScaling");
    expect(args.interval >= 1, "DelayedScaling", "interval >= 1", std::to_string(args.interval));
    expect(args.amax_history_len >= 1, "DelayedScaling", "amax_history_len >= 1",
           std::to_string(args.amax_history_len));
    // Beyond this no FP32 scale can hold the shift.
    expect(args.margin >= -127 && args.margin <= 127, "DelayedScaling", "margin in [-127, 127]",
           std::to_string(args.margin));
    const auto* function = std::get_if<AmaxFunction>(&args.amax_compute_algo);
    expect(!function || *function, "DelayedScaling", "amax_compute_algo that can be called", "an empty function");
  }
  void operator()(const CurrentScaling& args) const {
    check_fp8(args, "CurrentScaling");
    expect(args.granularity == kPerTensor || args.granularity == kPerRow, "CurrentScaling",
           "granularity tensor (0 x 0) or row (1 x 0)",
           std::to_string(args.granularity.block_rows) + " x " + std::to_string(args.granularity.block_cols));
  }
  void operator()(const BlockScaling& args) const { check_fp8(args, "BlockScaling"); }
  void operator()(const Mxfp8& args) const { check_fp8(args, "Mxfp8"); }
  void operator()(const Nvfp4Scaling& args) const {
    check_high_precision(args.high_precision_format, "Nvfp4Scaling");
    expect(!args.four_over_six || !args.ms_eden, "Nvfp4Scaling", "four_over_six or ms_eden", "both");
  }
  void operator()(const Mxfp4Scaling& args) const { check_high_precision(args.high_precision_format, "Mxfp4Scaling"); }

 private:
  template <class T>
  static void check_fp8(const T& args, std::string_view what) {
    check_format(args.fp8_format, what);
    check_high_precision(args.high_precision_format, what);
  }
};

struct OperandOf {
  Role role;
  GemmKind gemm;

  OperandRecipe operator()(const HighPrecision& args) const { return {.format = args.format}; }
  OperandRecipe operator()(const DelayedScaling& args) const {
    return {.format = format_of(args.fp8_format, role),
            .source = ScaleSource::kDelayed,
            .granularity = kPerTensor,
            .power_of_two = args.power_of_two,
            .margin = args.margin};
  }
  OperandRecipe operator()(const CurrentScaling& args) const {
    return {.format = format_of(args.fp8_format, role),
            .source = ScaleSource::kCurrent,
            .granularity = args.granularity,
            .power_of_two = args.power_of_two};
  }
  OperandRecipe operator()(const BlockScaling& args) const {
    return {.format = format_of(args.fp8_format, role),
            .source = ScaleSource::kCurrent,
            .granularity = role == Role::kWeight ? kBlock128x128 : kBlock1x128,
            .power_of_two = args.power_of_two};
  }
  OperandRecipe operator()(const Mxfp8& args) const {
    return {.format = format_of(args.fp8_format, role),
            .source = ScaleSource::kCurrent,
            .granularity = kMxBlock,
            .scale_format = Format::kE8m0,
            .power_of_two = true,
            .rounding = args.rounding};
  }
  OperandRecipe operator()(const Nvfp4Scaling& args) const {
    if (args.ms_eden && gemm != GemmKind::kOutput) return ms_eden_operand(args);
    const bool is_square = role == Role::kWeight && !args.disable_2d_quantization;
    return {.format = Format::kE2m1,
            .source = ScaleSource::kCurrent,
            .granularity = is_square ? kNvfp4Square : kNvfp4Block,
            .scale_format = Format::kE4m3,
            .scaling = args.four_over_six ? format::Fp4Scaling::kFourOverSix : format::Fp4Scaling::kNvfp4,
            .rotation = gemm == GemmKind::kGradWeight && !args.disable_rht ? kNvfp4Rotation : 0,
            .stochastic = role == Role::kGradOutput && !args.disable_stochastic_rounding};
  }
  OperandRecipe operator()(const Mxfp4Scaling& args) const {
    if (role == Role::kGradOutput) return (*this)(Mxfp8{.rounding = args.rounding});
    return {
        .format = Format::kE2m1,
        .source = ScaleSource::kCurrent,
        .granularity = kMxBlock,
        .scale_format = Format::kE8m0,
        .power_of_two = true,
        .rounding = args.rounding,
        .scaling = args.rounding == ScaleRounding::kUp ? format::Fp4Scaling::kMxfp4 : format::Fp4Scaling::kMxfp4Floor};
  }

 private:
  static constexpr int64_t kNvfp4Rotation = 16;

  static OperandRecipe ms_eden_operand(const Nvfp4Scaling& args) {
    return {.format = Format::kE2m1,
            .source = ScaleSource::kCurrent,
            .granularity = kNvfp4Block,
            .scale_format = Format::kE4m3,
            .scaling = format::Fp4Scaling::kMsEden,
            .rotation = args.disable_rht ? 0 : format::MsEden::kGroup,
            .stochastic = !args.disable_stochastic_rounding};
  }
};

struct OverrideOf {
  GemmKind gemm;

  bool operator()(const HighPrecision&) const { return true; }
  bool operator()(const auto& args) const {
    const bool backward = gemm != GemmKind::kOutput && args.backward_override != BackwardOverride::kNone;
    return backward || args.override_linear_precision(gemm);
  }
};

struct HighPrecisionFormatOf {
  Format operator()(const HighPrecision& args) const { return args.format; }
  Format operator()(const auto& args) const { return args.high_precision_format; }
};

struct OverridesBackwardOf {
  bool operator()(const HighPrecision&) const { return false; }
  bool operator()(const auto& args) const { return args.backward_override != BackwardOverride::kNone; }
};

struct DequantizesOf {
  bool operator()(const HighPrecision&) const { return false; }
  bool operator()(const auto& args) const { return args.backward_override == BackwardOverride::kDequantized; }
};

constexpr Role kAllRoles[] = {Role::kInput, Role::kWeight, Role::kGradOutput};

// Whether the predicate holds for an operand of some product.
template <class Predicate>
bool any_operand(const Recipe& recipe, Predicate predicate) {
  for (const GemmKind gemm : kGemmKinds) {
    for (const Role role : kAllRoles) {
      if (takes_part(role, gemm) && predicate(recipe.operand(role, gemm))) return true;
    }
  }
  return false;
}

}  // namespace

void Recipe::check() const { std::visit(Check{}, scaling_); }

Recipe::Recipe(ProductScalings products) : products_(std::make_shared<const ProductScalings>(std::move(products))) {
  int with_one_scale = 0;
  for (const Scaling& scaling : products_->scalings) {
    const Recipe plain{Scaling(scaling)};
    expect(plain.high_precision_format() == high_precision_format(), "Recipe",
           "products with one high-precision format", "two");
    expect(!std::visit(OverridesBackwardOf{}, scaling), "Recipe", "products without backward_override", "one with");
    const bool has_one_scale = any_operand(plain, [](const OperandRecipe& operand) {
      return format::is_fp8(operand.format) && operand.granularity == kPerTensor;
    });
    with_one_scale += has_one_scale ? 1 : 0;
  }
  expect(with_one_scale <= 1, "Recipe", "one scaling with one scale for a tensor at the most", "more");
}

const Scaling& Recipe::of(GemmKind gemm) const {
  return products_ == nullptr ? scaling_ : products_->scalings.at(products_->of_product.at(static_cast<size_t>(gemm)));
}

const DelayedScaling* Recipe::delayed() const {
  for (const GemmKind gemm : kGemmKinds) {
    if (const auto* const args = std::get_if<DelayedScaling>(&of(gemm))) return args;
  }
  return nullptr;
}

OperandRecipe Recipe::operand(Role role, GemmKind gemm) const {
  expect(takes_part(role, gemm), "Recipe::operand", "an operand of the product",
         std::string(kRoles[static_cast<size_t>(role)]) + " in " + kGemms[static_cast<size_t>(gemm)]);
  if (high_precision(gemm)) return {.format = high_precision_format()};
  return std::visit(OperandOf{role, gemm}, of(gemm));
}

OperandRecipe Recipe::stored_operand(Role role, GemmKind gemm) const {
  if (role != Role::kGradOutput && std::visit(DequantizesOf{}, of(gemm))) gemm = GemmKind::kOutput;
  OperandRecipe stored = operand(role, gemm);
  stored.granularity = stored_granularity(stored.granularity, role, gemm);
  stored.turned = stored.format == Format::kE2m1 && reduces_over_rows(role, gemm);
  return stored;
}

bool Recipe::high_precision(GemmKind gemm) const { return std::visit(OverrideOf{gemm}, of(gemm)); }

bool Recipe::high_precision() const {
  for (GemmKind gemm : kGemmKinds) {
    if (!high_precision(gemm)) return false;
  }
  return true;
}

Format Recipe::high_precision_format() const { return std::visit(HighPrecisionFormatOf{}, scaling()); }

bool Recipe::shares_codes(Role role) const {
  const OperandRecipe* first = nullptr;
  OperandRecipe kept;
  for (GemmKind gemm : kGemmKinds) {
    if (!takes_part(role, gemm)) continue;
    const OperandRecipe here = stored_operand(role, gemm);
    if (here.source == ScaleSource::kNone) return false;
    if (first && !(*first == here)) return false;
    kept = here;
    first = &kept;
  }
  return true;
}

bool Recipe::has_four_bits() const {
  return any_operand(*this, [](const OperandRecipe& operand) { return operand.format == Format::kE2m1; });
}

bool Recipe::is_random() const {
  return any_operand(*this, [](const OperandRecipe& operand) { return recipe::is_random(operand); });
}

}  // namespace plimsoll::recipe
