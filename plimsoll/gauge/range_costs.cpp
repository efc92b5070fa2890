#include "plimsoll/gauge/range_costs.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>

namespace plimsoll::gauge {
namespace {

constexpr int kLargest = 40;  // of each exponent: FP16's whole range, from 2^-24 to 2^16
// Bits of precision that one more doubling must save to be worth it.
constexpr double kStepCost = 1.0 / 64;

template <class Map>
const auto& look_up(const Map& map, const std::string& name) {
  const auto found = map.find(name);
  TORCH_CHECK(found != map.end(), "gauge: expected the amax of '", name, "', got none");
  return found->second;
}

}  // namespace

struct RangeCosts::Choice {
  int exponent = 0;
  RangeCost cost = {.beyond = std::numeric_limits<double>::infinity()};
};

RangeCosts::TensorCost::TensorCost(const models::GaugedTensor& tensor, int direction, float amax,
                                   const ExponentCounts* counts, int headroom_bits)
    : residual_(tensor.residual ? direction : 0), pair_(direction * tensor.sign) {
  for (int exponent = -2 * kLargest; exponent <= 2 * kLargest; ++exponent) {
    const double missing = std::max(0.0, headroom_bits - fp16_headroom(amax, exponent));
    costs_.push_back({missing * missing, counts == nullptr ? 0 : lost_bits(*counts, exponent)});
  }
}

RangeCost RangeCosts::TensorCost::at(int residual, int pair) const {
  const int exponent = std::clamp(residual_ * residual + pair_ * pair, -2 * kLargest, 2 * kLargest);
  return costs_[static_cast<size_t>(exponent + 2 * kLargest)];
}

RangeCosts::RangeCosts(const models::Freedoms& freedoms, const WeightRanges& weights, const models::Amaxes& values,
                       int headroom_bits, const models::Amaxes& gradients)
    : pairs_(freedoms.pairs.size()), rounds_(freedoms.pairs.size()) {
  for (const models::GaugedTensor& tensor : freedoms.weights) {
    const ExponentCounts& counts = look_up(weights, tensor.name);
    add(tensor, 1, counts.amax, &counts, /*headroom_bits=*/0);
  }
  for (const models::GaugedTensor& tensor : freedoms.values) {
    add(tensor, 1, look_up(values, tensor.name), nullptr, headroom_bits);
    const auto gradient = gradients.find(tensor.name);
    if (gradient != gradients.end()) add(tensor, -1, gradient->second, nullptr, headroom_bits);
  }
}

void RangeCosts::add(const models::GaugedTensor& tensor, int direction, float amax, const ExponentCounts* counts,
                     int headroom_bits) {
  TORCH_CHECK(std::isfinite(amax), "gauge: expected '", tensor.name, "' to be finite, got an amax of ", amax);
  if (tensor.pair) {
    if (tensor.one_plus) rounds_[*tensor.pair] = true;
    pairs_[*tensor.pair].emplace_back(tensor, direction, amax, counts, headroom_bits);
  } else if (tensor.residual) {
    residual_.emplace_back(tensor, direction, amax, counts, headroom_bits);
  }
}

RangeCost RangeCosts::sum(const Costs& costs, int residual, int pair) {
  RangeCost total;
  for (const TensorCost& cost : costs) total += cost.at(residual, pair);
  return total;
}

// The exponent of least cost(exponent); of equals the nearest to 0.
template <class Function>
RangeCosts::Choice RangeCosts::best_exponent(const Function& cost) {
  Choice best;
  for (int step = 0; step <= 2 * kLargest; ++step) {
    const int exponent = step % 2 == 0 ? step / 2 : -(step + 1) / 2;
    RangeCost candidate = cost(exponent);
    candidate.lost += kStepCost * std::abs(exponent);
    if (candidate < best.cost) best = {exponent, candidate};
  }
  return best;
}

RangeCosts::Choice RangeCosts::best_pair(size_t index, int residual) const {
  const Choice best = best_exponent([&](int exponent) { return sum(pairs_[index], residual, exponent); });
  const RangeCost unmoved = sum(pairs_[index], residual, 0);
  return rounds_[index] && !(best.cost.beyond < unmoved.beyond) ? Choice{.exponent = 0, .cost = unmoved} : best;
}

RangeCost RangeCosts::cost_with(int residual) const {
  RangeCost total = sum(residual_, residual, 0);
  for (size_t i = 0; i < pairs_.size(); ++i) total += best_pair(i, residual).cost;
  return total;
}

models::Exponents RangeCosts::best_with(int residual) const {
  models::Exponents result{.residual = residual};
  for (size_t i = 0; i < pairs_.size(); ++i) result.pairs.push_back(best_pair(i, residual).exponent);
  return result;
}

models::Exponents RangeCosts::best() const {
  return best_with(best_exponent([&](int residual) { return cost_with(residual); }).exponent);
}

RangeCost RangeCosts::of(const models::Exponents& exponents) const {
  RangeCost total = sum(residual_, exponents.residual, 0);
  for (size_t i = 0; i < pairs_.size(); ++i) total += sum(pairs_[i], exponents.residual, exponents.pairs[i]);
  return total;
}

double RangeCosts::worst_loss(const models::Exponents& exponents) const {
  double worst = 0;
  const auto look_at = [&](const Costs& costs, int pair) {
    for (const TensorCost& cost : costs) worst = std::max(worst, cost.at(exponents.residual, pair).lost);
  };
  look_at(residual_, 0);
  for (size_t i = 0; i < pairs_.size(); ++i) look_at(pairs_[i], exponents.pairs[i]);
  return worst;
}

}  // namespace plimsoll::gauge
