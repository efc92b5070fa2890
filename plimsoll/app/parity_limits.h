// Limits of what parity measures, with which it is a judge.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace plimsoll::app {

struct ParityLimits {
  std::optional<double> max_kl;     // mean KL divergence, nats
  std::optional<double> min_agree;  // share of the tokens with FP32's first choice
  std::optional<double> max_ppl;    // perplexity
};

// Throws Error for the first figure of a dtype, in the order of `dtypes`, that is beyond its limit, not finite or absent.
void check_parity(const nlohmann::json& result, const std::vector<std::string>& dtypes, const ParityLimits& limits);

}  // namespace plimsoll::app
