// Search for the exponents under which a language model's FP16 error on calibration inputs is least: that of its logits,
// or the sum of that and of its gradients'.
#pragma once

#include <functional>

#include "plimsoll/app/gauge/gauge_measurement.h"
#include "plimsoll/gauge/measured_search.h"
#include "plimsoll/gauge/range_costs.h"

namespace plimsoll::app {

struct Fp16Search {
  const models::LanguageModel& model;
  bool narrow_weights = true;  // FP16 weights; else FP32's, rounded in each product
  const GaugeInputs& inputs;
  const models::Freedoms& freedoms;
  const gauge::RangeCosts& costs;
  // Error of FP16's gradients, which counts, too; none: the model is not to be trained.
  std::function<double(const models::Exponents&)> gradient_error = {};
  int64_t most_measurements = 64;
};

// Feasible are exponents that leave values as much headroom as the best by amaxes, that round as few weights in FP32, and
// under which no weight loses more than a bit in the mean, or than the worst under these. Candidates: the best by amaxes,
// with other exponents of the residual stream, too, and gauge::uniform_exponents().
gauge::MeasuredExponents search_fp16(const Fp16Search& search);

}  // namespace plimsoll::app
