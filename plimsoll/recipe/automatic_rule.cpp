#include "plimsoll/recipe/automatic_rule.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>
#include <stdexcept>
#include <string>

namespace plimsoll::recipe {
namespace {

// Error of an operand, and what it is compared with.
struct Load {
  Role role;
  double error, bound;
  Reason reason;

  double share() const { return error / bound; }
  bool is_vote() const { return !(error <= bound); }  // NaN is one
};

Load load_of(const Automatic& recipe, int64_t rung, const OperandMeasurement& operand) {
  const Load own{operand.role, operand.error, recipe.bound(rung, operand.role), Reason::kError};
  if (operand.role != Role::kGradOutput) {
    const Load flushed{operand.role, operand.flushed, recipe.flushed(rung, operand.role), Reason::kFlushed};
    return flushed.share() > own.share() ? flushed : own;
  }
  // |g| < sqrt(3) |q(g) - g|
  const Load norm{operand.role, operand.norm_error, 1 / std::numbers::sqrt3, Reason::kGradient};
  return norm.share() > own.share() ? norm : own;
}

Load worst_load(const Automatic& recipe, int64_t rung, const ProductMeasurement& measured) {
  const Load a = load_of(recipe, rung, measured.a), b = load_of(recipe, rung, measured.b);
  return b.share() > a.share() ? b : a;
}

uint64_t ballots_of(const AutomaticLimits& limits, uint64_t votes) {
  return limits.ballots >= 64 ? votes : votes & ((uint64_t{1} << limits.ballots) - 1);
}

void take_in(const Automatic& recipe, const Clock& clock, const ProductMeasurement& measured, const Load& load,
             CodesRecord& record) {
  const auto mean = [&](double& value, double now) {
    const double decay = record.measured == 0 ? 0 : recipe.limits.mean_decay;
    value = decay * value + (1 - decay) * now;
  };
  const OperandMeasurement &a = measured.a, &b = measured.b;
  mean(record.mean_error, std::sqrt(a.error * a.error + b.error * b.error));
  mean(record.mean_load, load.share());
  mean(record.saturated, std::max(a.saturated, b.saturated));
  mean(record.flushed, std::max(a.flushed, b.flushed));
  record.headroom_bits = std::min(a.headroom_bits, b.headroom_bits);
  record.votes = ballots_of(recipe.limits, record.votes << 1 | (load.is_vote() ? 1 : 0));
  if (load.is_vote()) record.last_vote = clock.step;
  ++record.measured;
}

bool may_demote(const Automatic& recipe, const Clock& clock, const ProductState& state) {
  const AutomaticLimits& limits = recipe.limits;
  const int64_t since = std::max(state.below.last_vote, state.last_change);
  const bool is_quiet = clock.step - since >= limits.quiet && state.below.mean_load < limits.demote_share;
  const bool is_near_end =
      clock.steps > 0 && static_cast<double>(clock.step) >= (1 - limits.last_share) * static_cast<double>(clock.steps);
  const bool is_soon = state.last_demotion >= 0 && clock.step - state.last_demotion < limits.window;
  return is_quiet && !is_near_end && !is_soon;
}

// Records begin anew: they are about what was.
Decision moved(const Clock& clock, const Load& load, int64_t to, Reason reason, ProductState& state) {
  const Decision decision{state.rung, to, reason, load.role, load.error, load.bound};
  const int64_t last_demotion = to < state.rung ? clock.step : state.last_demotion;
  state = {.rung = to, .own = {}, .below = {}, .last_change = clock.step, .last_demotion = last_demotion};
  return decision;
}

// Operand that is not finite, if one is: in its own memory, or in codes that were tried.
std::optional<Role> not_finite(const StepMeasurement& measured) {
  for (const ProductMeasurement* const product : {&measured.own, &measured.below}) {
    if (!product->a.finite) return product->a.role;
    if (!product->b.finite) return product->b.role;
  }
  return std::nullopt;
}

}  // namespace

const CodesRecord& shown(const ProductState& state, int64_t last_rung) {
  return state.rung < last_rung ? state.own : state.below;
}

std::string_view name(Reason reason) {
  switch (reason) {
    case Reason::kNotFinite:
      return "not finite";
    case Reason::kError:
      return "error";
    case Reason::kFlushed:
      return "flushed";
    case Reason::kGradient:
      return "gradient";
    case Reason::kQuiet:
      return "quiet";
  }
  throw std::logic_error("name: expected a Reason, got " + std::to_string(static_cast<int>(reason)));
}

std::optional<Decision> decide(const Automatic& recipe, const Clock& clock, const StepMeasurement& measured,
                               ProductState& state) {
  if (const std::optional<Role> role = not_finite(measured)) {
    // Errors of such a step say nothing, and it was no quiet one.
    state.own.last_vote = state.below.last_vote = clock.step;
    if (!recipe.has_codes(state.rung)) return std::nullopt;
    return moved(clock, {*role, 0, 0, Reason::kNotFinite}, recipe.last_rung(), Reason::kNotFinite, state);
  }
  if (recipe.has_codes(state.rung) && measured.own.is_measured) {
    const Load load = worst_load(recipe, state.rung, measured.own);
    take_in(recipe, clock, measured.own, load, state.own);
    if (load.is_vote() && std::popcount(state.own.votes) >= recipe.limits.votes) {
      return moved(clock, load, state.rung + 1, load.reason, state);
    }
  }
  if (state.rung > 0 && measured.below.is_measured) {
    const Load load = worst_load(recipe, state.rung - 1, measured.below);
    take_in(recipe, clock, measured.below, load, state.below);
    if (may_demote(recipe, clock, state)) {
      return moved(clock, {load.role, state.below.mean_load, recipe.limits.demote_share, load.reason}, state.rung - 1,
                   Reason::kQuiet, state);
    }
  }
  return std::nullopt;
}

bool measures(const AutomaticLimits& limits, int64_t step) { return step < limits.ballots || step % limits.every == 0; }

bool asks_for_next(const Automatic& recipe, const ProductState& state) {
  return recipe.has_codes(state.rung) && (state.own.votes & 1) != 0;
}

}  // namespace plimsoll::recipe
