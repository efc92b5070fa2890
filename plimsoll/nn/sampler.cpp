#include "plimsoll/nn/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace plimsoll::nn {

int64_t sample(std::span<const float> logits, const SamplingOptions& options, double uniform) {
  std::vector<int64_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto logit = [&](int64_t token) { return static_cast<double>(logits[static_cast<size_t>(token)]); };
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return logit(a) > logit(b); });
  if (options.temperature == 0) return order.front();
  if (options.top_k > 0) order.resize(std::min(order.size(), static_cast<size_t>(options.top_k)));

  std::vector<double> cumulative(order.size());
  double sum = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    cumulative[i] = sum += std::exp((logit(order[i]) - logit(order.front())) / options.temperature);
  }
  if (options.top_p < 1) {
    const auto enough = std::lower_bound(cumulative.begin(), cumulative.end() - 1, options.top_p * sum);
    sum = *enough;
    cumulative.erase(enough + 1, cumulative.end());
  }
  const auto chosen = std::upper_bound(cumulative.begin(), cumulative.end(), uniform * sum);
  return order[static_cast<size_t>(std::min(chosen, cumulative.end() - 1) - cumulative.begin())];
}

}  // namespace plimsoll::nn
