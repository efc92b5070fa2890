// Delayed scaling: this step's scale comes from the amaxes of the steps before, so an operand is quantized in one read.
// Faults of Transformer Engine's first release that this one does not have: an Inf in the history, a first step at
// scale 1, an interval that nothing reads.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <variant>

#include "plimsoll/recipe/operand.h"

namespace plimsoll::recipe {

enum class Fp8Format : uint8_t {
  kE4m3,    // both passes E4M3
  kHybrid,  // E4M3 forward, E5M2 for gradients
  kE5m2,    // rejected: two mantissa bits are too few for inputs and weights
};

// The format of an operand's codes. kE5m2 gives E5M2 for every role.
constexpr Format format_of(Fp8Format fp8_format, Role role) {
  if (fp8_format == Fp8Format::kE5m2) return Format::kE5m2;
  return fp8_format == Fp8Format::kHybrid && role == Role::kGradOutput ? Format::kE5m2 : Format::kE4m3;
}

// Products that run in high precision: fprop, dgrad, wgrad.
struct LinearOverride {
  bool output = false;
  bool grad_input = false;
  bool grad_weight = false;

  constexpr bool operator()(GemmKind gemm) const {
    return gemm == GemmKind::kOutput ? output : gemm == GemmKind::kGradInput ? grad_input : grad_weight;
  }
  friend constexpr bool operator==(const LinearOverride&, const LinearOverride&) = default;
};

// Values of inputs and weights that the products of the backward pass read, in high precision.
enum class BackwardOverride : uint8_t {
  kNone,           // as override_linear_precision says
  kHighPrecision,  // the tensors as they were before they became codes
  kDequantized,    // the values of the codes that the forward pass read
};

enum class AmaxRule : uint8_t {
  kMax,         // of the whole history
  kMostRecent,  // row 0
};
// Picks the amax from the history, which is as amax_history below; returns a finite amax >= 0.
using AmaxFunction = std::function<float(std::span<const float> amax_history)>;

struct InvScaleInput {
  float amax = 0;           // finite
  float old_inv_scale = 1;  // kept where the amax says nothing
  float max_finite = 0;     // of the code format
  int margin = 0;
};
// Returns a finite inv_scale > 0.
using InvScaleFunction = std::function<float(const InvScaleInput&)>;

struct DelayedScaling {
  int margin = 0;
  int64_t interval = 1;  // steps between two computations of the scales
  Fp8Format fp8_format = Fp8Format::kHybrid;
  int64_t amax_history_len = 1024;
  std::variant<AmaxRule, AmaxFunction> amax_compute_algo = AmaxRule::kMax;
  InvScaleFunction scaling_factor_compute_algo = {};  // empty: compute_inv_scale()
  LinearOverride override_linear_precision = {};
  BackwardOverride backward_override = BackwardOverride::kNone;
  bool reduce_amax = true;  // over the ranks of fp8_group
  bool power_of_two = false;
  Format high_precision_format = Format::kBf16;
};

// (max_finite * 2^-margin) / amax in FP32, in [FLT_MIN, FLT_MAX]; power_of_two: the largest power of two that is no
// larger before the margin. An amax that is 0 or not finite keeps old_inv_scale.
float compute_inv_scale(const InvScaleInput& input);
float compute_inv_scale_power_of_two(const InvScaleInput& input);

// The state of one quantized operand, owned by the caller. scale dequantizes; kNoScale before the first finite amax >
// 0. amax_history: row 0 is being filled, then from the oldest to the newest.
inline constexpr float kNoScale = 0.0f;
struct DelayedState {
  float& scale;
  std::span<float> amax_history;  // [amax_history_len]
};

// scale = 1 / inv_scale, at least FLT_MIN; kNoScale counts as scale 1.
float scale_of(float inv_scale);
float inv_scale_of(float scale);

// Folds an amax of this step into row 0 by max. A non-finite amax is not written; returns false, for the caller to
// report.
bool record_amax(const DelayedState& state, float amax);

// First use: if there is no scale yet, takes it from the operand's own amax, so that nothing is quantized at an
// arbitrary scale. Does nothing if there is a scale, or if the amax is 0 or not finite.
void first_scale(const DelayedScaling& recipe, Format codes, float amax, const DelayedState& state);

// The end of step `step` (counted from 0): computes the scale if step + 1 is a multiple of interval, then rolls row 0
// in as the newest row. Throws std::invalid_argument if a callable returns a number out of its range; the state is then
// as before.
void update(const DelayedScaling& recipe, Format codes, int64_t step, const DelayedState& state);

// Copies row 0 and the newest rows into a history of another length; rows without a value become 0.
void resize_history(std::span<const float> from, std::span<float> to);

}  // namespace plimsoll::recipe
