// Confidence bounds of a share of successes.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>

namespace plimsoll::app {

struct Interval {
  double low = 0, high = 1;
};

// The 95 % interval of a probability that made `successes` of `trials`. Source: Wilson 1927. [0, 1] without a trial.
Interval wilson_interval(int64_t successes, int64_t trials);

// {"correct", "of", "share", "interval": [low, high]}.
nlohmann::json binomial_json(int64_t successes, int64_t trials);

}  // namespace plimsoll::app
