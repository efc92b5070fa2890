#include "plimsoll/autoscale/execute.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "plimsoll/autoscale/casts.h"
#include "plimsoll/autoscale/composition.h"
#include "plimsoll/autoscale/operands.h"
#include "plimsoll/autoscale/powers.h"
#include "plimsoll/autoscale/storage.h"
#include "plimsoll/ops/torch_internals/collective.h"
#include "plimsoll/runtime/unexpected.h"

namespace plimsoll::autoscale {
namespace {

using torch::jit::Stack;

// In a session's counts the calls whose constant the result's format does not hold beside the other values.
constexpr const char* kLostConstant = "autoscale::lost_constant";

int64_t elements_of_first(Operands& operands) {
  for (const Operand& operand : operands.all())
    if (operand.is_data()) return operand.data.numel();
  return 1;
}

bool measures(const Plan& plan) {
  return std::any_of(plan.results.begin(), plan.results.end(), [](const ResultPlan& row) {
    return row.scale == ResultScale::kMeasured || row.scale == ResultScale::kLossGradient;
  });
}

// The dtype that the caller asks for decides, too.
at::ScalarType logical_of(const Plan& plan, const Operands& operands, const Stack& stack) {
  const std::optional<at::ScalarType> dtype = asked_dtype(plan, stack);
  return dtype && at::isFloatingType(*dtype) ? *dtype : operands.logical();
}

// Whether what is written into `target` must not have been rounded before.
bool rounds_from_fp32(const at::Tensor& target) {
  return keeps_remainder(target) || scaled_impl(target).shared().session->settings().rounding == Rounding::kStochastic;
}

// Whether the rule says of this call that its result's elements lie further apart than the operands'.
bool spreads(const Plan& plan, Operands& operands, const Stack& stack) {
  switch (plan.rule == nullptr ? Spread::kAsOperands : plan.rule->spread) {
    case Spread::kAsOperands:
    case Spread::kSums:  // dtype_of()
      return false;
    case Spread::kWide:
      return true;
    case Spread::kSquare:
      return are_one_tensor(operands.all().front().tensor, operands.all().back().tensor);
    case Spread::kPower:
      return is_spreading_power(stack.back());
  }
  runtime::unexpected("autoscale: spread", static_cast<int>(plan.rule->spread));
}

struct Prepared {
  bool on_values = false;  // nothing follows from the operands' scales
  bool casts = false;      // the caller asks for a dtype that the data cannot stand in for
  bool spreads = false;    // the result's data are FP32
  Composition composition = {};
  at::ScalarType logical = at::kFloat;
  int64_t terms = 1;  // elements of the first operand
};

Prepared prepare(const Plan& plan, Operands& operands, Stack& stack) {
  // Results of an optimizer's state are in FP32, as the state is.
  const bool casts_to = casts(plan, stack);
  Prepared prepared{
      .on_values = plan.is_fallback() || casts_to || !operands.strided() || (operands.wide() && !plan.in_place),
      .casts = casts_to,
      .spreads = spreads(plan, operands, stack),
      .logical = logical_of(plan, operands, stack)};
  const std::string& name = plan.name;
  const bool has_rule = !plan.is_fallback() || plan.counts_as_rule;
  if (prepared.on_values) {
    operands.enter_values();
    operands.session()->count(name, has_rule ? &CallCounts::wide : &CallCounts::fallback);
  } else {
    operands.enter();
    prepared.composition = compose(plan, operands, stack);
    prepared.terms = elements_of_first(operands);
    const Scale largest = grown(prepared.composition.expected, plan.rule->growth, prepared.terms);
    const bool rounds_once = plan.in_place && rounds_from_fp32(operands.all().front().tensor);
    prepared.spreads |= prepared.composition.far_apart;
    const bool widens = widens_spread(operands.session()->settings().policy) &&
                        (prepared.spreads || plan.rule->spread == Spread::kSums);
    const bool narrow = operands.one_format() && !operands.wide() && !measures(plan) && !rounds_once && !widens &&
                        fits(largest.bound, operands.session()->settings().storage);
    if (!narrow) operands.widen();
    apply(prepared.composition, plan, operands, stack);
    operands.session()->count(name, narrow ? &CallCounts::storage : &CallCounts::wide);
  }
  operands.write(plan, stack);
  if (plan.input_dtype_argument >= 0)
    stack[stack.size() - plan.arguments.size() + static_cast<size_t>(plan.input_dtype_argument)] =
        static_cast<int64_t>(at::kFloat);
  return prepared;
}

// The tensors get the values that the kernel wrote into copies of them.
void assign_written(Operands& operands) {
  for (const Operand& operand : operands.all())
    if (operand.written && is_scaled(operand.tensor)) assign(operand.tensor, {.data = operand.data});
  for (const Operand& operand : operands.all())
    if (operand.written_unsaid && operand.tensor.defined() && !is_scaled(operand.tensor) &&
        !operand.data.is_same(operand.tensor))
      operand.tensor.copy_(operand.data);
}

// The scale by ResultScale::kNormalised. A row's largest element is at most the root of its length, which is the gain's,
// or, not to ask, that of all rows together.
std::optional<Scale> normalised(const std::vector<Operand>& operands, const at::Tensor& result) {
  const bool has_gain = operands.size() > 1 && operands[1].use == Use::kGain;
  const int64_t length = has_gain ? operands[1].tensor.numel() : result.numel();
  Scale scale = {.bound = 0.5 * std::log2(static_cast<double>(std::max<int64_t>(length, 1)))};
  for (size_t i = 1; i < operands.size(); ++i) {
    if (!is_scaled(operands[i].tensor)) return std::nullopt;
    scale = operands[i].use == Use::kGain ? product(scale, operands[i].scale) : sum(scale, operands[i].scale);
  }
  return scale.is_zero() ? std::nullopt : std::optional(scale);
}

// The scale by ResultScale::kLikeFirst.
std::optional<Scale> like_first(const std::vector<Operand>& operands) {
  Scale scale = operands.front().scale;
  if (!is_scaled(operands.front().tensor) || scale.is_zero()) return std::nullopt;
  scale.bound += 1;
  return scale;
}

// Scale that `result` should have by its operands', before its data are looked at.
Scale expected_of(const at::Tensor& result, const Plan& plan, const Prepared& prepared) {
  const int64_t terms = std::max<int64_t>(1, prepared.terms / std::max<int64_t>(1, result.numel()));
  return grown(prepared.composition.expected, plan.rule->growth, terms);
}

// Whether the operands' scales say how large the result is. Elements that lie far apart may be made equal by others that
// do: a row by its own size.
bool follows_scales(const Operands& operands, const Prepared& prepared) {
  return !prepared.on_values && !(operands.meets_spread() && widens_spread(operands.session()->settings().policy));
}

// dtype of a result's data.
at::ScalarType dtype_of(const at::Tensor& result, const Plan& plan, const Operands& operands,
                        const Prepared& prepared) {
  const bool sums = !plan.is_fallback() && plan.rule->spread == Spread::kSums &&
                    prepared.terms >= kFewestTerms * std::max<int64_t>(1, result.numel());
  return operands.result_dtype(result.dim(), prepared.spreads || sums);
}

// A constant that vanishes, or loses bits, in a result whose data have 16 bits, or one beside which the others do.
void count_lost_constant(Session& session, const std::string& name) {
  session.count(kLostConstant, &CallCounts::storage);
  TORCH_WARN_ONCE(
      "autoscale: ", name,
      ": expected a constant that 16 bits hold beside the other values, got one too far from them; ",
      "under the policy autoscale a result has FP32 data then, unless it is written into a memory that other tensors "
      "have, too. report() counts such calls as ",
      kLostConstant);
}

// A result that torch has rounded to a narrow dtype: held as it is.
at::Tensor cast_result(const at::Tensor& result, const Operands& operands, const Prepared& prepared) {
  const at::ScalarType dtype = storage_dtype(*operands.session(), result.dim(), operands.wide());
  const Encoded encoded = encode_exactly(result.to(at::kFloat), dtype);
  ScaledOptions options = operands.options(encoded.scale);
  options.logical = prepared.logical;
  return make_scaled(encoded.data, options);
}

at::Tensor scaled_result(const at::Tensor& result, ResultScale scale, const Plan& plan, Operands& operands,
                         const Prepared& prepared) {
  if (!result.defined() || !result.is_floating_point() || result.layout() != at::kStrided ||
      scale == ResultScale::kPlain)
    return result;
  if (prepared.casts || at::isFloat8Type(result.scalar_type())) return cast_result(result, operands, prepared);
  ScaledOptions options = operands.options({.bound = kUnbounded});
  options.logical = prepared.logical;
  if (prepared.on_values && operands.wide() && result.scalar_type() == at::kFloat) return make_scaled(result, options);
  const int32_t exponent = prepared.composition.expected.exponent;
  std::optional<Scale> expected;
  if (scale == ResultScale::kFollows && follows_scales(operands, prepared))
    expected = expected_of(result, plan, prepared);
  if (scale == ResultScale::kNormalised && !prepared.on_values) expected = normalised(operands.all(), result);
  if (scale == ResultScale::kLikeFirst && !prepared.on_values) expected = like_first(operands.all());
  const at::ScalarType dtype = dtype_of(result, plan, operands, prepared);
  if (prepared.composition.far_apart && dtype != at::kFloat) count_lost_constant(*operands.session(), plan.name);
  const Encoded encoded =
      encode({.data = result, .exponent = exponent}, *operands.session(),
             {.dtype = dtype,
              .expected = expected ? &*expected : nullptr,
              .origin = scale == ResultScale::kLossGradient ? Origin::kLossGradient : Origin::kResult});
  options.scale = encoded.scale;
  return make_scaled(encoded.data, options);
}

// The result of the functional twin, written into the first argument.
void finish_in_place(const Plan& plan, Operands& operands, const Prepared& prepared, Stack& stack) {
  const at::Tensor written = torch::jit::pop(stack).toTensor();
  const at::Tensor result = written.is_floating_point() ? written : written.to(at::kFloat);  // eq_
  const at::Tensor& self = operands.all().front().tensor;
  const Scale expected = expected_of(result, plan, prepared);
  const bool is_narrow = scaled_impl(self).data().scalar_type() != at::kFloat && !keeps_remainder(self);
  if (prepared.composition.far_apart && is_narrow) {
    const bool widens = widens_spread(operands.session()->settings().policy) && widen_alone(self);
    if (!widens) count_lost_constant(*operands.session(), plan.name);
  }
  const bool follows = plan.results.front().scale == ResultScale::kFollows && follows_scales(operands, prepared);
  assign(self, {.data = result, .exponent = prepared.composition.expected.exponent}, follows ? &expected : nullptr);
  stack.emplace_back(self);
}

// The tensor that the caller gave as argument `index`.
const at::Tensor& original(Operands& operands, size_t index) {
  const auto same = [&](const Operand& operand) { return operand.argument == index; };
  return std::find_if(operands.all().begin(), operands.all().end(), same)->tensor;
}

// A collective may still be running when its operator returns.
void wait_for_work(const Plan& plan, const Stack& stack) {
  for (size_t i = stack.size() - plan.results.size(); i < stack.size(); ++i) ops::wait_for_collective(stack[i]);
}

void finish(const Plan& plan, Operands& operands, const Prepared& prepared, Stack& stack) {
  wait_for_work(plan, stack);
  assign_written(operands);
  const size_t base = stack.size() - plan.results.size();
  for (size_t i = 0; i < plan.results.size(); ++i) {
    const ResultPlan& row = plan.results[i];
    c10::IValue& value = stack[base + i];
    if (row.written >= 0) {
      value = original(operands, static_cast<size_t>(row.written));
    } else if (value.isTensor()) {
      value = scaled_result(value.toTensor(), row.scale, plan, operands, prepared);
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector())
        list.push_back(scaled_result(tensor, row.scale, plan, operands, prepared));
      value = std::move(list);
    }
  }
}

}  // namespace

void execute(const Plan& plan, Stack& stack) {
  Operands operands(plan, stack);
  const BelowAutoscale below;
  const Prepared prepared = prepare(plan, operands, stack);
  plan.run.callBoxed(stack);
  if (plan.in_place) {
    finish_in_place(plan, operands, prepared, stack);
  } else {
    finish(plan, operands, prepared, stack);
  }
}

}  // namespace plimsoll::autoscale
