#include "plimsoll/autoscale/rule.h"

namespace plimsoll::autoscale {

std::string_view name_of(RuleClass rule_class) {
  switch (rule_class) {
    case RuleClass::kScaleFree:
      return "scale-free";
    case RuleClass::kDegreeOne:
      return "degree 1";
    case RuleClass::kDegree:
      return "degree k";
    case RuleClass::kAdditive:
      return "additive";
    case RuleClass::kAccumulator:
      return "accumulator";
    case RuleClass::kProduct:
      return "product";
    case RuleClass::kInvariant:
      return "invariant";
    case RuleClass::kNonlinear:
      return "nonlinear";
    case RuleClass::kGradient:
      return "gradient";
    case RuleClass::kOptimizer:
      return "optimizer";
    case RuleClass::kMove:
      return "move";
  }
  return "";
}

std::string_view bound_of(RuleClass rule_class) {
  switch (rule_class) {
    case RuleClass::kScaleFree:
      return "the bits of FP32 on the same values";
    case RuleClass::kDegreeOne:
    case RuleClass::kDegree:
      return "the same data for any exponents of the operands";
    case RuleClass::kAdditive:
    case RuleClass::kAccumulator:
      return "one rounding of the sum; of an operand that is shifted down, what falls below the storage's smallest "
             "number";
    case RuleClass::kProduct:
      return "the GEMM's bound (numerics.md), then one rounding to storage";
    case RuleClass::kInvariant:
    case RuleClass::kNonlinear:
    case RuleClass::kGradient:
      return "FP32 on the values, then one rounding to storage";
    case RuleClass::kOptimizer:
      return "FP32 on the values, then one rounding, nearest or stochastic";
    case RuleClass::kMove:
      return "one rounding to storage";
  }
  return "";
}

}  // namespace plimsoll::autoscale
