#include "plimsoll/autoscale/rule.h"

#include "plimsoll/runtime/unexpected.h"

namespace plimsoll::autoscale {

using enum ResultScale;
using enum Use;

ClassOfRules class_of(RuleClass kind) {
  constexpr std::string_view kSameData = "the same data for any exponents of the operands",
                             kOneSum =
                                 "one rounding of the sum; of an operand that is shifted down, what falls below "
                                 "the storage's smallest number",
                             kOneRounding = "FP32 on the values, then one rounding to storage";
  switch (kind) {
    case RuleClass::kScaleFree:
      return {"scale-free", "the bits of FP32 on the same values", kAnyScale, {}, kPlain};
    case RuleClass::kDegreeOne:
      return {"degree 1", kSameData, kLinear};
    case RuleClass::kDegree:
      return {"degree k", kSameData, kLinear, kLinear};
    case RuleClass::kAdditive:
      return {"additive", kOneSum, kAligned, kAligned};
    case RuleClass::kAccumulator:
      return {"accumulator", kOneSum, kAccumulated, kLinear};
    case RuleClass::kProduct:
      return {"product", "the GEMM's bound (numerics.md), then one rounding to storage", kLinear, kLinear};
    case RuleClass::kInvariant:
      return {"invariant", kOneRounding, kValue, kValue, kMeasured};
    case RuleClass::kNonlinear:
      return {"nonlinear", kOneRounding, kValue, kValue, kMeasured};
    case RuleClass::kGradient:
      return {"gradient", kOneRounding, kLinear, kValue, kMeasured};
    case RuleClass::kOptimizer:
      return {"optimizer", "FP32 on the values, then one rounding, nearest or stochastic", kValue, kValue};
    case RuleClass::kMove:
      return {"move", "one rounding to storage", kLinear};
    case RuleClass::kView:
      return {"view", "the same data", kLinear};
  }
  runtime::unexpected("autoscale: rule class", static_cast<int>(kind));
}

}  // namespace plimsoll::autoscale
