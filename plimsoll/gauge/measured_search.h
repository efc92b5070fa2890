// Search for the exponents of least measured error: of given candidates, and then of the best one's neighbours.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "plimsoll/models/freedoms.h"

namespace plimsoll::gauge {

struct MeasuredSearch {
  const models::Freedoms& freedoms;
  std::vector<models::Exponents> candidates;  // at least one; the first must be feasible
  std::function<bool(const models::Exponents&)> is_feasible;
  std::function<double(const models::Exponents&)> error;  // 0 or more; NaN or infinite where the outputs are
  int64_t most_measurements = 64;                         // calls of error
};

struct MeasuredExponents {
  models::Exponents exponents;
  double error = 0;
  double first_error = 0;    // of the first candidate
  int64_t measurements = 0;  // calls of error
};

// The least error of the feasible candidates, and then coordinate descent from there: the residual stream, all pairs
// of a kind together, each pair, by three and by one, as long as a move gains 1/64. Deterministic; nothing is measured
// twice. Exponents of 0 are kept, if they are among the candidates, unless 1/64 is gained.
MeasuredExponents search_measured(const MeasuredSearch& search);

// Exponents with one number for all freedoms: the residual stream has 0, -3, -6, -9 or -12, and the pairs have none, or
// the same, or the same with keys that shrink where queries grow.
std::vector<models::Exponents> uniform_exponents(const models::Freedoms& freedoms);

}  // namespace plimsoll::gauge
