// Rule of the recipe `auto`: measurements of one product in, a decision out. Pure and deterministic: the same
// measurements give the same decisions on every machine and rank, and a state that was saved goes on as if it had not
// been.
//
// A measured step of a product is a vote against a rung with codes if an operand's error in them exceeds the bound of its
// role, if too many elements of its input or weight become zero, or if its gradient has |g| < sqrt(3) |q(g) - g|, beyond
// which descent stops to progress (Chmiel et al., FP4 All the Way, arXiv 2505.19115).
//   promote  to the last rung at once, where an operand is not finite; and by one rung with `votes` votes against the
//            product's own in the last `ballots` measured steps
//   demote   by one rung after `quiet` steps without a vote against that, if the mean load of what the product would read
//            there is below demote_share; not in the last share of the schedule, and not twice within a
//            window
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "plimsoll/recipe/automatic.h"

namespace plimsoll::recipe {

// An operand in the codes of a rung, in one step.
struct OperandMeasurement {
  Role role = Role::kInput;
  bool finite = true;  // its amax is
  // Root of the mean over groups of columns of |q(x) - x|^2 / |x|^2: an outlier hides the errors of its own group alone. Of a
  // weight the same over groups of rows, if that is more: each is an output.
  double error = 0;
  double norm_error = 0;  // |q(x) - x| / |x| of the whole
  double saturated = 0;   // share of the elements that are not zero and lie beyond the largest code
  double flushed = 0;     // share of them that became zero
  double headroom_bits = 0;
};

struct ProductMeasurement {
  OperandMeasurement a = {}, b = {};
  bool is_measured = true;  // false: only `finite` is known
};

// A product in one step: the codes that it read, and those of the rung below, made for this alone. Those that do not
// exist, on the ladder's ends, are not measured.
struct StepMeasurement {
  ProductMeasurement own = {.is_measured = false}, below = {.is_measured = false};
};

// Time in a run. steps is 0 where nobody knows how many there will be: the end of the schedule is never near then.
struct Clock {
  int64_t step = 0;  // counted from 0
  int64_t steps = 0;
};

// A product in the codes of one rung, since its last change.
struct CodesRecord {
  uint64_t votes = 0;  // of the measured steps, the newest in the lowest bit
  // Exponential means over the measured steps; 0 before the first.
  double mean_error = 0;              // root of the sum of both operands' squared errors: the product's, to first order
  double mean_load = 0;               // the larger of both operands' errors, as a share of its bound
  double saturated = 0, flushed = 0;  // the larger share of the two operands
  double headroom_bits = 0;           // the lower of the two operands, in the last measured step
  int64_t measured = 0;               // steps
  int64_t last_vote = -1;             // step; -1: none

  friend bool operator==(const CodesRecord&, const CodesRecord&) = default;
};

struct ProductState {
  int64_t rung = 0;
  CodesRecord own = {}, below = {};  // the rung's codes, and those of the rung below
  int64_t last_change = -1;          // step; -1: none
  int64_t last_demotion = -1;        // step

  friend bool operator==(const ProductState&, const ProductState&) = default;
};

// The record that tells of the product's rung: its own codes, or, where it has none, those that it might have.
const CodesRecord& shown(const ProductState& state, int64_t last_rung);

enum class Reason : uint8_t {
  kNotFinite,  // promoted: an operand holds NaN or Inf
  kError,      // promoted: an operand's error exceeds its bound
  kFlushed,    // promoted: too large a share of an input or a weight became zero
  kGradient,   // promoted: |g| < sqrt(3) |q(g) - g|
  kQuiet,      // demoted
};
std::string_view name(Reason reason);

struct Decision {
  int64_t from = 0, to = 0;  // rungs
  Reason reason = Reason::kQuiet;
  Role role = Role::kInput;  // of the operand whose error, as a share of its bound, is the largest
  double error = 0;          // of that operand, or its flushed share; demoted: the product's mean load
  double bound = 0;          // that it was compared with; demoted: demote_share
};

// Takes in what was measured in the step at `clock`, which ends now.
std::optional<Decision> decide(const Automatic& recipe, const Clock& clock, const StepMeasurement& measured,
                               ProductState& state);

// Whether a step is to be measured: the first `ballots`, and each `every`-th.
bool measures(const AutomaticLimits& limits, int64_t step);
// Whether the step after it is to be measured, too, so that votes come together: the newest was one against its rung.
bool asks_for_next(const Automatic& recipe, const ProductState& state);

}  // namespace plimsoll::recipe
