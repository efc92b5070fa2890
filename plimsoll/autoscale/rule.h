// The rules: what an operator does to scales, and by which code it runs; one row of rule_table.cpp for each operator.
// docs/autoscale_rules.md is printed from them.
#pragma once

#include <ATen/core/stack.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <stdexcept>
#include <string_view>

namespace plimsoll::autoscale {

struct Plan;
struct ScalesCall;

// Runs a call: the arguments on the stack become the results.
using Kernel = void(const Plan&, torch::jit::Stack&);
// Runs a call on tensors of several scales, or returns false where these do not allow for it.
using ScalesRule = bool(const ScalesCall&);

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
  kView,         // shares the scale of what it views, as do views that have no row
};

// Part of a tensor, or of each in a list of them, that the kernel reads.
enum class Use : uint8_t {
  kAnyScale,     // the data, whatever their scale: signs, indices, masks
  kValue,        // the value in FP32
  kGain,         // the value in FP32, the weight of a normalisation
  kOffset,       // the value in FP32, the bias of a normalisation
  kLinear,       // the data; the exponent is of degree 1 in the result's
  kInverse,      // the same, degree -1
  kSquared,      // the same, degree 2
  kRoot,         // the same, degree 1/2
  kInverseRoot,  // the same, degree -1/2
  kAligned,      // the data, brought to one exponent with all that are aligned; the result has it, too
  kCompared,     // the data, brought to that exponent, for comparison alone
  kAccumulated,  // the data, brought to the exponent of the sum
};

// Effect of a number among the arguments.
enum class NumberUse : uint8_t {
  kAsIs,
  kFactor,          // its power of two goes into the result's scale
  kDivisor,         // the same, of degree -1
  kConstant,        // divided by the common power of two of aligned tensors, which is large enough for it
  kConstantFactor,  // multiplies the constant, and goes into it
  kTermFactor,      // takes the shift of an accumulator's term
};

// Source of a result's scale. A result that is not floating point has none.
enum class ResultScale : uint8_t {
  kFollows,       // the operands' scales, by their degrees
  kMeasured,      // a look at the result
  kLossGradient,  // a look also under policies that measure no result: the gradient of a loss's input
  kLikeFirst,     // the first operand: no element is more than twice as large, and the size is much the same
  kNormalised,    // the gain and the offset of rows of rms 1
  kPlain,         // nowhere: a plain tensor or a number
};

// Growth of the rms and of the largest element, beyond what the exponents say.
enum class Growth : uint8_t {
  kNone,  // no element grows
  kTerm,  // two terms are added
  kFew,   // factors below 2^7: dropout, small windows
  kSum,   // sums over all elements of the operand that fall to one of the result
  kMean,  // their mean
};

// The enumerators of a row, in the order of the schema.
template <class Each>
class RowList {
 public:
  constexpr RowList(std::initializer_list<Each> list = {}) : size_(list.size()) {
    if (size_ > each_.size()) throw std::length_error("autoscale: expected a rule of at most 14 operands");
    std::copy(list.begin(), list.end(), each_.begin());
  }
  constexpr size_t size() const { return size_; }
  constexpr Each operator[](size_t i) const { return each_[i]; }

 private:
  std::array<Each, 14> each_ = {};
  size_t size_;
};

// Spread of a result's elements, beyond the operands': FP16 of one exponent does not hold the smallest of them. Such a
// result has FP32 data, as has what is computed of such results alone; where it meets data of 16 bits, that is rounded.
enum class Spread : uint8_t {
  kAsOperands,
  kWide,    // squares and inverses of elements, and statistics
  kSquare,  // the same where both factors are one tensor
  kPower,   // the same where the exponent is negative or above 1
  kSums,    // the same where at least kFewestTerms elements fall to one of the result: it is small beside its operand
};
inline constexpr int64_t kFewestTerms = 8;

struct Rule {
  // Name and overload of a functional operator of aten, or plimsoll::name. Its variants that write have the same rule.
  std::string_view op;
  RuleClass kind;
  // One for each argument that holds tensors; none: as the class says (ClassOfRules).
  RowList<Use> operands = {};
  // For the first arguments that are numbers; the others are as they are.
  RowList<NumberUse> numbers = {};
  // For the first results, the last one also for all that follow; none: as the class says.
  RowList<ResultScale> results = {};
  Growth growth = Growth::kNone;
  Spread spread = Spread::kAsOperands;
  Kernel* kernel = nullptr;      // nullptr: execute(), and run_view() of a view
  Kernel* in_place = nullptr;    // the variant's that writes into the first argument; nullptr: `kernel`
  ScalesRule* scales = nullptr;  // nullptr: the operator sees one scale (one_scale.h)
};

// Properties that all rules of a class share.
struct ClassOfRules {
  std::string_view name;
  std::string_view bound;        // the difference from the operator on values in FP64
  Use first = Use::kValue;       // the first operand's
  std::optional<Use> rest = {};  // the other operands'; none: a row says it
  ResultScale result = ResultScale::kFollows;
};
ClassOfRules class_of(RuleClass kind);

std::span<const Rule> rules();

}  // namespace plimsoll::autoscale
