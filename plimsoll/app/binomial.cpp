#include "plimsoll/app/binomial.h"

#include <algorithm>
#include <cmath>

namespace plimsoll::app {

Interval wilson_interval(int64_t successes, int64_t trials) {
  if (trials == 0) return {};
  constexpr double kZ = 1.959963984540054;  // of the normal distribution, 97.5 %
  const auto n = static_cast<double>(trials);
  const double share = static_cast<double>(successes) / n, spread = kZ * kZ / n;
  const double centre = (share + spread / 2) / (1 + spread);
  const double reach = std::sqrt(share * (1 - share) * spread + spread * spread / 4) / (1 + spread);
  return {std::max(0.0, centre - reach), std::min(1.0, centre + reach)};
}

nlohmann::json binomial_json(int64_t successes, int64_t trials) {
  const Interval interval = wilson_interval(successes, trials);
  return {{"correct", successes},
          {"of", trials},
          {"share", trials == 0 ? 0.0 : static_cast<double>(successes) / static_cast<double>(trials)},
          {"interval", {interval.low, interval.high}}};
}

}  // namespace plimsoll::app
