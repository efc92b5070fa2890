// Search for the products that must stay in high precision so that a model in codes stays within a bound. Pure: it knows
// the model by measurements alone.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace plimsoll::app {

struct PlanProduct {
  std::string name;       // "blocks.0.layernorm_mlp.fc2"
  int64_t weights = 0;    // elements of its weight
  double divergence = 0;  // mean KL, nats, with this product alone in codes; not finite: Inf or NaN came up
};

// Mean KL of a text, nats.
struct PlanDivergence {
  double mean = 0, standard_error = 0;
  int64_t samples = 2;  // that the error was estimated from

  // Upper limit of the mean over all such texts, exceeded in one case of 40, by Student's distribution.
  double bound() const;
};

struct PlanSearch {
  std::vector<PlanProduct> products;
  double most = 0.01;  // nats, of PlanDivergence::bound()
  // The products that are true stay wide, the others have codes.
  std::function<PlanDivergence(const std::vector<bool>& wide)> measure;
  int64_t most_measurements = 64;  // but the bisection has all that it takes, two and log2 of the products
};

struct Plan {
  std::vector<bool> wide;     // of each product
  PlanDivergence divergence;  // as measured
  int64_t measurements = 0;
  bool is_within = false;  // false: not even without any codes
};

// Products leave the codes in the order of divergence a weight, the worst first, until the rest is within the bound: a
// bisection finds how many. What need not be wide goes back, the last first, while measurements are left.
Plan search_plan(const PlanSearch& search);

}  // namespace plimsoll::app
