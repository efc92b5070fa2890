#include "plimsoll/nn/sampler.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace plimsoll::nn {
namespace {

// The tokens that may be drawn, likeliest first, and the sums of their shares up to each.
struct Draws {
  std::vector<int64_t> order;
  std::vector<double> cumulative;  // as many as tokens; not of sum 1
};

Draws draws_of(std::span<const float> logits, const SamplingOptions& options) {
  Draws draws;
  std::vector<int64_t>& order = draws.order;
  order.resize(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto logit = [&](int64_t token) { return static_cast<double>(logits[static_cast<size_t>(token)]); };
  const auto likelier = [&](int64_t a, int64_t b) { return logit(a) > logit(b) || (logit(a) == logit(b) && a < b); };
  size_t kept = options.top_k > 0 ? std::min(order.size(), static_cast<size_t>(options.top_k)) : order.size();
  if (options.temperature == 0) kept = 1;
  if (kept < order.size()) {
    std::partial_sort(order.begin(), order.begin() + static_cast<int64_t>(kept), order.end(), likelier);
    order.resize(kept);
  } else {
    std::sort(order.begin(), order.end(), likelier);
  }
  while (order.size() > 1 && std::isinf(logit(order.back())) && logit(order.back()) < 0) order.pop_back();

  const double temperature = options.temperature == 0 ? 1 : options.temperature;
  double sum = 0;
  for (const int64_t token : order) {
    draws.cumulative.push_back(sum += std::exp((logit(token) - logit(order.front())) / temperature));
  }
  if (options.top_p < 1) {
    const auto enough = std::lower_bound(draws.cumulative.begin(), draws.cumulative.end() - 1, options.top_p * sum);
    draws.cumulative.erase(enough + 1, draws.cumulative.end());
    order.resize(draws.cumulative.size());
  }
  return draws;
}

}  // namespace

void check(const SamplingOptions& options) {
  TORCH_CHECK_VALUE(options.temperature >= 0 && options.top_k >= 0 && options.top_p >= 0 && options.top_p <= 1,
                    "generate: expected temperature >= 0, top_k >= 0 and top_p in [0, 1], got ", options.temperature,
                    ", ", options.top_k, " and ", options.top_p);
}

int64_t sample(std::span<const float> logits, const SamplingOptions& options, double uniform) {
  const auto [order, cumulative] = draws_of(logits, options);
  const auto chosen = std::upper_bound(cumulative.begin(), cumulative.end(), uniform * cumulative.back());
  return order[static_cast<size_t>(std::min(chosen, cumulative.end() - 1) - cumulative.begin())];
}

std::vector<float> logits_of_draws(std::span<const float> logits, const SamplingOptions& options) {
  std::vector<float> result(logits.size(), -std::numeric_limits<float>::infinity());
  const auto temperature = static_cast<float>(options.temperature == 0 ? 1 : options.temperature);
  for (const int64_t token : draws_of(logits, options).order) {
    const auto place = static_cast<size_t>(token);
    result[place] = logits[place] / temperature;
  }
  return result;
}

}  // namespace plimsoll::nn
