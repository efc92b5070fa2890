// The rules: what an operator does to scales, one line each. docs/autoscale_rules.md is printed from them.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "plimsoll/autoscale/scale.h"

namespace plimsoll::autoscale {

enum class RuleClass : uint8_t {
  kScaleFree,    // no scale in the result
  kDegreeOne,    // f(2^k x) = 2^k f(x)
  kDegree,       // f(2^k x) = 2^(k d) f(x), for each operand its d
  kAdditive,     // operands brought to one exponent
  kAccumulator,  // self + factor * product: the factor takes the shift
  kProduct,      // matrix products, on the library's GEMM
  kInvariant,    // normalises its input
  kNonlinear,    // values in FP32, the result's scale measured
  kGradient,     // linear in the gradient, nonlinear in the rest
  kOptimizer,    // a whole step, on values in FP32
  kMove,         // writes into a tensor, or changes its dtype
};
std::string_view name_of(RuleClass rule_class);
std::string_view bound_of(RuleClass rule_class);

// What becomes of the rms and the largest element, beyond what the exponents say.
enum class Growth : uint8_t {
  kNone,  // no element grows
  kTerm,  // two terms are added
  kFew,   // factors below 2^7: dropout, small windows
  kSum,   // sums over all elements of the operand that fall to one of the result
  kMean,  // their mean
};

// One character for each argument or result.
//   operands, for tensors and lists of them:
//     1  data; exponents of degree 1 in the result      -  of degree -1      2  of degree 2
//     h  of degree 1/2                                  i  of degree -1/2
//     =  data, brought to one exponent with the other =; the result has it, too
//     c  data, brought to that exponent, for comparison alone
//     +  data, brought to the exponent of the sum (accumulators)
//     v  its value in FP32                              .  data, whatever their scale: signs, indices, masks
//   scalars, for numbers (none: all .):
//     1, -  as operands    =  divided by the common power of two, which is large enough for it
//     f  the factor that takes the shift of an accumulator       .  as it is
//   results:
//     *  the scale that follows from the operands'      m  measured      .  a plain tensor or a number
//     s  its first operand's: no element is more than twice as large, and its size is much the same
//     n  a normalised row's: that of the weight, if there is one, and of the bias
//     M  measured by policies that measure no result, too: the gradient of a loss's input
struct Rule {
  // Name and overload of a functional operator of aten, or plimsoll::name. Its variants that write have the same rule.
  std::string_view op;
  RuleClass rule_class;
  std::string_view operands;
  std::string_view results = "*";
  std::string_view scalars = "";
  Growth growth = Growth::kNone;
};

// All letters of operands, numbers and results. A rule with another one is an error where it is registered.
inline constexpr std::string_view kOperandModes = "1-2hi=c+v.", kNumberModes = "1-=f.", kResultModes = "*msnM.";

std::span<const Rule> rules();

}  // namespace plimsoll::autoscale
