#include "plimsoll/autoscale/composition.h"

#include <ATen/TensorOperators.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "plimsoll/autoscale/storage.h"

namespace plimsoll::autoscale {
namespace {

constexpr int32_t kNoExponent = std::numeric_limits<int32_t>::min();
constexpr double kFewBits = 7;  // Growth::kFew

// In the result's exponent.
double degree_of(Use use) {
  if (use == Use::kInverse) return -1;
  if (use == Use::kSquared) return 2;
  return use == Use::kRoot ? 0.5 : use == Use::kInverseRoot ? -0.5 : 1;
}
double degree_of(NumberUse use) { return use == NumberUse::kDivisor ? -1 : 1; }

bool is_half_degree(Use use) { return use == Use::kRoot || use == Use::kInverseRoot; }
bool is_factor_of_result(NumberUse use) { return use == NumberUse::kFactor || use == NumberUse::kDivisor; }

// Roots halve exponents: an odd bit moves into the data.
Scale even(const Scale& scale) { return scale.exponent % 2 == 0 ? scale : with_exponent(scale, scale.exponent - 1); }

// Runs f(use, value) on each number of the call that has a part in the rule.
template <class Stack, class F>
void for_each_number(const Plan& plan, Stack& stack, F&& f) {
  const size_t base = stack.size() - plan.arguments.size();
  for (size_t i = 0; i < plan.arguments.size(); ++i) {
    const ArgumentPlan& argument = plan.arguments[i];
    if (argument.kind == ArgumentKind::kNumber && argument.number != NumberUse::kAsIs && !stack[base + i].isNone())
      f(argument.number, stack[base + i]);
  }
}

double number(const c10::IValue& value) { return value.toScalar().to<double>(); }

// NumberUse::kConstantFactor of the call.
template <class Stack>
double constant_factor(const Plan& plan, Stack& stack) {
  double factor = 1;
  for_each_number(plan, stack, [&](NumberUse use, const c10::IValue& value) {
    if (use == NumberUse::kConstantFactor) factor = number(value);
  });
  return factor;
}

// Operands at one exponent.
class Alignment {
 public:
  void add(const Scale& scale) {
    if (scale.is_zero()) return add_mask(scale);
    exponent_ = std::max(exponent_, scale.exponent);
    largest_ = std::max(largest_, scale.largest());
    smallest_rms_ = std::min(smallest_rms_, scale.rms());
    rms_ = std::isinf(rms_) ? scale.rms() : rms_ + 0.5 * std::log2(1 + std::exp2(2 * (scale.rms() - rms_)));
  }
  // A constant has no rms to keep near 1: it is enough that it fits.
  void add_constant(const Scale& scale) {
    if (scale.is_zero()) return add_mask(scale);
    exponent_ = std::max(exponent_, static_cast<int32_t>(std::ceil(scale.largest() - kHeadroom)));
    largest_ = std::max(largest_, scale.largest());
    largest_constant_ = std::max(largest_constant_, scale.largest());
    if (std::isinf(rms_)) rms_ = scale.rms();
  }
  Scale scale() const {
    if (exponent_ == kNoExponent) return zero_scale();
    return {.exponent = exponent_, .remainder = rms_ - exponent_, .bound = std::max(largest_ - exponent_, mask_bound_)};
  }
  // log2 of the rms of the smallest tensor; infinite where there is none.
  double smallest_rms() const { return smallest_rms_; }
  // Exponent that a result of this scale comes to have: where it does not fit it is measured, with the constants in it.
  double reached(const Scale& scale, at::ScalarType storage) const {
    return fits(scale.bound, storage) ? scale.exponent : std::max(scale.rms(), largest_constant_);
  }

 private:
  void add_mask(const Scale& scale) {
    if (!scale.is_mask()) return;
    exponent_ = std::max(exponent_, 0);
    mask_bound_ = scale.bound;
  }

  int32_t exponent_ = kNoExponent;
  double largest_ = -kUnbounded, largest_constant_ = -kUnbounded, mask_bound_ = -kUnbounded;
  double smallest_rms_ = std::numeric_limits<double>::infinity();
  double rms_ = -std::numeric_limits<double>::infinity();
};

// A plain tensor without dimensions. The scale that a policy gave it may say nothing of its size.
Scale scale_of_constant(const at::Tensor& constant) {
  return constant.is_complex() ? zero_scale() : scale_of_number(constant.item<double>());
}

void multiply_by(double factor, at::Tensor& data) {
  if (factor != 1) data = data * factor;
}

}  // namespace

Composition compose(const Plan& plan, Operands& operands, const torch::jit::Stack& stack) {
  const Policy& policy = operands.session()->settings().policy;
  const at::ScalarType storage = operands.session()->settings().storage;
  Scale product, self = zero_scale();
  Alignment alignment;
  bool aligned = false, accumulates = false, term_constant = true, adds_plain = false;
  Scale constants;  // product of those that are factors of an accumulator's term
  Scale self_constant = zero_scale();
  double smallest = kUnbounded;  // constant
  const auto note_constant = [&](const Scale& scale) {
    if (!scale.is_zero()) smallest = std::min(smallest, scale.largest());
  };
  for (const Operand& operand : operands.all()) {
    if (!operand.is_data()) continue;
    const bool plain = !is_scaled(operand.tensor), constant = plain && operand.tensor.dim() == 0;
    adds_plain |= plain && !constant;
    if (operand.use == Use::kAligned || operand.use == Use::kCompared) {
      constant ? alignment.add_constant(operand.scale) : alignment.add(operand.scale);
      if (constant) note_constant(scale_of_constant(operand.tensor));
      aligned |= operand.use == Use::kAligned;
    } else if (operand.use == Use::kAccumulated) {
      self = operand.scale;
      accumulates = true;
      if (constant) self_constant = scale_of_constant(operand.tensor);
    } else {
      const Scale& scale = operand.scale;
      const Scale factor = power(is_half_degree(operand.use) ? even(scale) : scale, degree_of(operand.use));
      product = autoscale::product(product, factor);
      term_constant &= constant;
      if (constant) constants = autoscale::product(constants, scale_of_constant(operand.tensor));
    }
  }
  double shifted_factor = 1;
  const double of_constant = constant_factor(plan, stack);
  for_each_number(plan, stack, [&](NumberUse use, const c10::IValue& value) {
    if (use == NumberUse::kConstant) {
      const Scale scale = scale_of_number(of_constant * number(value));
      alignment.add_constant(scale);
      note_constant(scale);
    }
    if (use == NumberUse::kTermFactor) shifted_factor = number(value);
    if (is_factor_of_result(use))
      product = autoscale::product(product, power(number_scale(policy, number(value)), degree_of(use)));
  });
  Composition result{.expected = product, .product = product, .common = alignment.scale().exponent};
  if (accumulates) {
    const Scale term = autoscale::product(product, scale_of_number(shifted_factor));
    result.expected = settled_by(policy, sum(self, term), false);
    result.common = result.expected.exponent;
    note_constant(self_constant);
    if (term_constant) note_constant(autoscale::product(constants, scale_of_number(shifted_factor)));
    // A plain tensor may be a mask: zeros, and numbers beside which the others vanish.
    if (adds_plain && !self.is_zero() && !term.is_zero()) smallest = std::min({smallest, self.rms(), term.rms()});
  } else if (aligned) {
    result.expected = alignment.scale();
    result.far_apart =
        alignment.smallest_rms() <
        alignment.reached(settled_by(policy, result.expected, false), storage) + smallest_normal(storage);
  }
  result.far_apart |= smallest < result.common + smallest_normal(storage);
  return result;
}

Scale grown(const Scale& scale, Growth growth, int64_t terms) {
  Scale result = scale;
  switch (growth) {
    case Growth::kNone:
      return scale;
    case Growth::kTerm:
      result.bound += 1;
      return result;
    case Growth::kFew:
      result.bound += kFewBits;
      return result;
    case Growth::kSum:
      return sum_over(scale, terms);
    case Growth::kMean:
      return mean_over(scale, terms);
  }
  return result;
}

void apply(const Composition& composition, const Plan& plan, Operands& operands, torch::jit::Stack& stack) {
  for (Operand& operand : operands.all()) {
    if (!operand.is_data() || operand.scale.is_zero()) continue;
    const bool aligned =
        operand.use == Use::kAligned || operand.use == Use::kCompared || operand.use == Use::kAccumulated;
    if (aligned && operand.data.is_floating_point()) {
      operand.data = times_power(operand.data, operand.scale.exponent - composition.common, operand.data.scalar_type());
    } else if (is_half_degree(operand.use)) {
      multiply_by(shift(operand.scale, even(operand.scale).exponent), operand.data);
    }
  }
  const Policy& policy = operands.session()->settings().policy;
  const double of_constant = constant_factor(plan, stack);
  for_each_number(plan, stack, [&](NumberUse use, c10::IValue& value) {
    const double x = number(value) * (use == NumberUse::kConstant ? of_constant : 1);
    const Scale scale = number_scale(policy, x);
    if (use == NumberUse::kTermFactor) {
      value = x * shift(composition.product, composition.common);
    } else if (use == NumberUse::kConstantFactor) {
      value = 1.0;
    } else if (use == NumberUse::kConstant && scale.is_mask()) {
      value = std::copysign(std::exp2(kMaskData), x);
    } else if (use == NumberUse::kConstant) {
      value = x == 0 || !std::isfinite(x) ? x : x * std::exp2(-static_cast<double>(composition.common));
    } else if (is_factor_of_result(use) && !scale.is_zero()) {
      value = x * std::exp2(-static_cast<double>(scale.exponent));
    }
  });
}

}  // namespace plimsoll::autoscale
