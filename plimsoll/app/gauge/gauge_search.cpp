#include "plimsoll/app/gauge/gauge_search.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "plimsoll/watch/audit.h"

namespace plimsoll::app {
namespace {

using models::Exponents;

// Bits that a weight may lose to subnormal numbers in the mean of its elements, unless the best by amaxes lose more.
constexpr double kMostLostBits = 1;
// Other exponents of the residual stream than the best by amaxes.
constexpr std::array kResidualSteps = {-1, 1, -2, 2, -3, 3};

// Elements whose 1 + w FP32 does not hold times the power of two.
int64_t rounded_elements(const Fp16Search& search, const Exponents& exponents) {
  int64_t count = 0;
  std::map<std::string, at::Tensor> weights;
  for (const models::GaugedTensor& tensor : search.freedoms.weights) {
    if (!tensor.one_plus) continue;
    if (weights.empty()) weights = search.model.weights_with_freedom();
    const at::Tensor want =
        (weights.at(tensor.name).to(at::kFloat) + 1) * std::ldexp(1.0, exponent_of(tensor, exponents));
    count += ((want - 1) + 1 - want).count_nonzero().item<int64_t>();
  }
  return count;
}

}  // namespace

gauge::MeasuredExponents search_fp16(const Fp16Search& search) {
  const at::NoGradGuard no_grad;
  const watch::AuditedRun run("search");
  const gauge::RangeCosts& costs = search.costs;
  const Exponents first = costs.best();
  gauge::MeasuredSearch measured{.freedoms = search.freedoms,
                                 .candidates = {first},
                                 .is_feasible = {},
                                 .error = {},
                                 .most_measurements = search.most_measurements};
  for (Exponents& uniform : gauge::uniform_exponents(search.freedoms))
    measured.candidates.push_back(std::move(uniform));
  for (const int step : kResidualSteps) measured.candidates.push_back(costs.best_with(first.residual + step));
  const double beyond = costs.of(first).beyond, most_lost = std::max(kMostLostBits, costs.worst_loss(first));
  const int64_t most_rounded = rounded_elements(search, first);
  measured.is_feasible = [&](const Exponents& exponents) {
    return costs.of(exponents).beyond <= beyond && costs.worst_loss(exponents) <= most_lost &&
           rounded_elements(search, exponents) <= most_rounded;
  };
  measured.error = [&](const Exponents& exponents) {
    const auto model =
        search.narrow_weights ? search.model.multiplied(exponents, at::kHalf) : search.model.multiplied(exponents);
    const double error = fp16_error(*model, search.inputs);
    return search.gradient_error && std::isfinite(error) ? error + search.gradient_error(exponents) : error;
  };
  return gauge::search_measured(measured);
}

}  // namespace plimsoll::app
