#include "plimsoll/app/line/plan_search.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

namespace plimsoll::app {
namespace {

// Quantiles of 97.5 % of Student's distribution, by degrees of freedom from 1 on; beyond, the next smaller one's.
constexpr std::array<double, 30> kStudent = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
                                             2.201,  2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
                                             2.080,  2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042};

// Divergence for each weight that codes would narrow; the search keeps the costliest products wide.
double cost(const PlanProduct& product) {
  if (!std::isfinite(product.divergence)) return std::numeric_limits<double>::infinity();
  return product.divergence / static_cast<double>(std::max<int64_t>(product.weights, 1));
}

class Search {
 public:
  explicit Search(const PlanSearch& search) : search_(search), order_(search.products.size()) {
    std::iota(order_.begin(), order_.end(), size_t{0});
    std::stable_sort(order_.begin(), order_.end(),
                     [&](size_t a, size_t b) { return cost(search_.products[a]) > cost(search_.products[b]); });
  }

  Plan run() {
    if (!try_first(0)) {
      size_t low = 0, high = order_.size();  // not within, and within
      if (!try_first(high)) return best_;
      while (high - low > 1) {
        const size_t middle = low + (high - low) / 2;
        (try_first(middle) ? high : low) = middle;
      }
      give_back(high);
    }
    return best_;
  }

 private:
  // Whether the model is within the bound with these products wide. Keeps it then, and the first that is tried.
  bool attempt(const std::vector<bool>& wide) {
    const PlanDivergence divergence = search_.measure(wide);
    ++best_.measurements;
    const bool is_within = divergence.bound() <= search_.most;  // false for NaN
    if (is_within || best_.wide.empty() || !best_.is_within) {
      best_.wide = wide;
      best_.divergence = divergence;
      best_.is_within = is_within;
    }
    return is_within;
  }

  bool try_first(size_t count) {
    std::vector<bool> wide(order_.size());
    for (size_t i = 0; i < count; ++i) wide[order_[i]] = true;
    return attempt(wide);
  }

  void give_back(size_t count) {
    // The last one is needed: the bisection has been there without it.
    for (size_t i = count; i-- > 0 && best_.measurements < search_.most_measurements;) {
      if (i + 1 == count || !std::isfinite(search_.products[order_[i]].divergence)) continue;
      std::vector<bool> wide = best_.wide;
      wide[order_[i]] = false;
      attempt(wide);
    }
  }

  const PlanSearch& search_;
  std::vector<size_t> order_;
  Plan best_;
};

}  // namespace

double PlanDivergence::bound() const {
  const int64_t freedom = std::clamp<int64_t>(samples - 1, 1, static_cast<int64_t>(kStudent.size()));
  return mean + kStudent[static_cast<size_t>(freedom - 1)] * standard_error;
}

Plan search_plan(const PlanSearch& search) { return Search(search).run(); }

}  // namespace plimsoll::app
