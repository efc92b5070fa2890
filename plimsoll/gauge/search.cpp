#include "plimsoll/gauge/search.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace plimsoll::gauge {
namespace {

constexpr int kLargest = 40;  // of each exponent: FP16's whole range, from 2^-24 to 2^16
// Bits of precision that one more doubling must save to be worth it.
constexpr double kStepCost = 1.0 / 64;

struct Cost {
  double beyond = 0;  // bits of headroom that are missing, squared
  double lost = 0;    // bits of precision

  Cost& operator+=(const Cost& other) {
    beyond += other.beyond;
    lost += other.lost;
    return *this;
  }
  friend bool operator<(const Cost& a, const Cost& b) {
    return a.beyond != b.beyond ? a.beyond < b.beyond : a.lost < b.lost;
  }
};

// The cost of one tensor at each of its exponents.
class TensorCost {
 public:
  TensorCost(const models::GaugedTensor& tensor, float amax, const ExponentCounts* counts, int headroom_bits)
      : tensor_(tensor) {
    for (int exponent = -2 * kLargest; exponent <= 2 * kLargest; ++exponent) {
      const double missing = std::max(0.0, headroom_bits - fp16_headroom(amax, exponent));
      costs_.push_back({missing * missing, counts == nullptr ? 0 : lost_bits(*counts, exponent)});
    }
  }

  Cost at(int residual, int pair) const {
    const int exponent = (tensor_.residual ? residual : 0) + tensor_.sign * pair;
    return costs_[static_cast<size_t>(exponent + 2 * kLargest)];
  }

 private:
  const models::GaugedTensor& tensor_;
  std::vector<Cost> costs_;
};

struct Choice {
  int exponent = 0;
  Cost cost = {.beyond = std::numeric_limits<double>::infinity()};
};

// The exponent of least cost(exponent); of equals the nearest to 0.
template <class Function>
Choice best_exponent(const Function& cost) {
  Choice best;
  for (int step = 0; step <= 2 * kLargest; ++step) {
    const int exponent = step % 2 == 0 ? step / 2 : -(step + 1) / 2;
    Cost candidate = cost(exponent);
    candidate.lost += kStepCost * std::abs(exponent);
    if (candidate < best.cost) best = {exponent, candidate};
  }
  return best;
}

class Search {
 public:
  explicit Search(const models::Freedoms& freedoms) : pairs_(freedoms.pairs.size()) {}

  void add(const models::GaugedTensor& tensor, float amax, const ExponentCounts* counts, int headroom_bits) {
    TORCH_CHECK(std::isfinite(amax), "gauge: expected '", tensor.name, "' to be finite, got an amax of ", amax);
    TensorCost cost(tensor, amax, counts, headroom_bits);
    if (tensor.pair) {
      pairs_[*tensor.pair].push_back(std::move(cost));
    } else if (tensor.residual) {
      residual_.push_back(std::move(cost));
    }
  }

  models::Exponents run() const {
    models::Exponents result;
    result.residual = best_exponent([&](int residual) { return cost_with(residual); }).exponent;
    for (size_t i = 0; i < pairs_.size(); ++i) result.pairs.push_back(best_pair(i, result.residual).exponent);
    return result;
  }

 private:
  using Costs = std::vector<TensorCost>;

  static Cost sum(const Costs& costs, int residual, int pair) {
    Cost total;
    for (const TensorCost& cost : costs) total += cost.at(residual, pair);
    return total;
  }
  Choice best_pair(size_t index, int residual) const {
    return best_exponent([&](int exponent) { return sum(pairs_[index], residual, exponent); });
  }
  Cost cost_with(int residual) const {
    Cost total = sum(residual_, residual, 0);
    for (size_t i = 0; i < pairs_.size(); ++i) total += best_pair(i, residual).cost;
    return total;
  }

  Costs residual_;            // tensors that the residual stream's exponent alone moves
  std::vector<Costs> pairs_;  // those of each pair
};

template <class Map>
const auto& look_up(const Map& map, const std::string& name) {
  const auto found = map.find(name);
  TORCH_CHECK(found != map.end(), "gauge: expected the amax of '", name, "', got none");
  return found->second;
}

}  // namespace

void raise_to(models::Amaxes& amaxes, const std::vector<watch::Record>& records) {
  for (const watch::Record& record : records) {
    TORCH_CHECK(record.non_finite == 0, "gauge: expected finite values in FP32, got Inf or NaN in '", record.name, "'");
    float& amax = amaxes[record.name];
    amax = std::max(amax, record.amax);
  }
}

models::Exponents search(const models::Freedoms& freedoms, const WeightRanges& weights, const models::Amaxes& values,
                         int headroom_bits) {
  Search search(freedoms);
  for (const models::GaugedTensor& tensor : freedoms.weights) {
    const ExponentCounts& counts = look_up(weights, tensor.name);
    search.add(tensor, counts.amax, &counts, headroom_bits);
  }
  for (const models::GaugedTensor& tensor : freedoms.values) {
    search.add(tensor, look_up(values, tensor.name), nullptr, headroom_bits);
  }
  return search.run();
}

}  // namespace plimsoll::gauge
