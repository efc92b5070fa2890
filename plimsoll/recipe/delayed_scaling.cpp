#include "plimsoll/recipe/delayed_scaling.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <stdexcept>
#include <string>

namespace plimsoll::recipe {
namespace {

bool says_something(float amax) { return std::isfinite(amax) && amax > 0; }

float history_amax(const DelayedScaling& recipe, std::span<const float> history) {
  if (const auto* function = std::get_if<AmaxFunction>(&recipe.amax_compute_algo)) {
    const float amax = (*function)(history);
    if (!std::isfinite(amax) || amax < 0) {
      throw std::invalid_argument("amax_compute_algo: expected a finite amax >= 0, got " + std::to_string(amax));
    }
    return amax;
  }
  if (std::get<AmaxRule>(recipe.amax_compute_algo) == AmaxRule::kMostRecent) return history.front();
  return *std::max_element(history.begin(), history.end());
}

float next_inv_scale(const DelayedScaling& recipe, Format codes, float amax, float old_inv_scale) {
  const InvScaleInput input{amax, old_inv_scale, format::max_finite(codes), recipe.margin};
  if (!recipe.scaling_factor_compute_algo) {
    return recipe.power_of_two ? compute_inv_scale_power_of_two(input) : compute_inv_scale(input);
  }
  const float inv_scale = recipe.scaling_factor_compute_algo(input);
  if (!says_something(inv_scale)) {
    throw std::invalid_argument("scaling_factor_compute_algo: expected a finite inv_scale > 0, got " +
                                std::to_string(inv_scale));
  }
  return inv_scale;
}

}  // namespace

float compute_inv_scale(const InvScaleInput& input) {
  if (!says_something(input.amax)) return input.old_inv_scale;
  return std::clamp(std::ldexp(input.max_finite, -input.margin) / input.amax, FLT_MIN, FLT_MAX);
}

float compute_inv_scale_power_of_two(const InvScaleInput& input) {
  if (!says_something(input.amax)) return input.old_inv_scale;
  // Exact: a quotient of two floats that is no power of two is further from one than double's rounding.
  const int exponent = std::ilogb(double{input.max_finite} / double{input.amax}) - input.margin;
  return std::ldexp(1.0f, std::clamp(exponent, FLT_MIN_EXP - 1, FLT_MAX_EXP - 1));
}

float scale_of(float inv_scale) { return std::max(1.0f / inv_scale, FLT_MIN); }

float inv_scale_of(float scale) { return scale == kNoScale ? 1.0f : 1.0f / scale; }

bool record_amax(const DelayedState& state, float amax) {
  if (!std::isfinite(amax)) return false;
  float& row = state.amax_history.front();
  row = std::max(row, std::fabs(amax));
  return true;
}

void first_scale(const DelayedScaling& recipe, Format codes, float amax, const DelayedState& state) {
  if (state.scale != kNoScale || !says_something(amax)) return;
  state.scale = scale_of(next_inv_scale(recipe, codes, amax, 1.0f));
}

void update(const DelayedScaling& recipe, Format codes, int64_t step, const DelayedState& state) {
  const std::span<float> history = state.amax_history;
  if ((step + 1) % recipe.interval == 0) {
    const float amax = history_amax(recipe, history);
    const bool unused = state.scale == kNoScale && amax == 0;
    if (!unused) state.scale = scale_of(next_inv_scale(recipe, codes, amax, inv_scale_of(state.scale)));
  }
  std::rotate(history.begin(), history.begin() + 1, history.end());
  history.front() = 0;
}

void resize_history(std::span<const float> from, std::span<float> to) {
  std::fill(to.begin(), to.end(), 0.0f);
  if (from.empty() || to.empty()) return;
  to.front() = from.front();
  const size_t rows = std::min(from.size(), to.size()) - 1;
  std::copy(from.end() - static_cast<std::ptrdiff_t>(rows), from.end(), to.end() - static_cast<std::ptrdiff_t>(rows));
}

}  // namespace plimsoll::recipe
