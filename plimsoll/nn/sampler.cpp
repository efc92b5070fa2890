#include "plimsoll/nn/sampler.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

namespace plimsoll::nn {
namespace {

// All tokens, likeliest first, of equal ones the first: by counting, 11 bits of a logit at a time, so that a large
// vocabulary takes a fraction of what comparisons would.
std::vector<int64_t> likeliest_first(std::span<const float> logits) {
  constexpr int kBits = 11;
  constexpr uint32_t kValues = 1U << kBits, kSign = 0x80000000U;
  struct Entry {
    uint32_t key;  // rises as the logit falls
    uint32_t token;
  };
  std::vector<Entry> entries(logits.size()), sorted(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    const auto bits = std::bit_cast<uint32_t>(logits[i] + 0.0f);  // -0 is as likely as 0
    entries[i] = {(bits & kSign) != 0 ? bits : ~(bits | kSign), static_cast<uint32_t>(i)};
  }
  for (int shift = 0; shift < 32; shift += kBits) {
    std::array<size_t, kValues + 1> places = {};
    const auto digit = [&](const Entry& entry) { return entry.key >> shift & (kValues - 1); };
    for (const Entry& entry : entries) ++places[digit(entry) + 1];
    std::partial_sum(places.begin(), places.end(), places.begin());
    for (const Entry& entry : entries) sorted[places[digit(entry)]++] = entry;
    entries.swap(sorted);
  }
  std::vector<int64_t> order(logits.size());
  std::ranges::transform(entries, order.begin(), [](const Entry& entry) { return entry.token; });
  return order;
}

// The tokens that may be drawn, likeliest first, and the sums of their shares up to each.
struct Draws {
  std::vector<int64_t> order;
  std::vector<double> cumulative;  // as many as tokens; not of sum 1
};

Draws draws_of(std::span<const float> logits, const SamplingOptions& options) {
  Draws draws;
  std::vector<int64_t>& order = draws.order;
  const auto logit = [&](int64_t token) { return static_cast<double>(logits[static_cast<size_t>(token)]); };
  const auto likelier = [&](int64_t a, int64_t b) { return logit(a) > logit(b) || (logit(a) == logit(b) && a < b); };
  size_t kept = options.top_k > 0 ? std::min(logits.size(), static_cast<size_t>(options.top_k)) : logits.size();
  if (options.temperature == 0) kept = 1;
  if (kept < logits.size()) {
    order.resize(logits.size());
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + static_cast<int64_t>(kept), order.end(), likelier);
    order.resize(kept);
  } else {
    order = likeliest_first(logits);
  }
  while (order.size() > 1 && std::isinf(logit(order.back())) && logit(order.back()) < 0) order.pop_back();

  const double temperature = options.temperature == 0 ? 1 : options.temperature;
  double sum = 0;
  size_t likely = 0;  // tokens that min_p leaves
  for (const int64_t token : order) {
    const double share = std::exp((logit(token) - logit(order.front())) / temperature);
    if (share >= options.min_p) ++likely;
    draws.cumulative.push_back(sum += share);
  }
  if (options.top_p < 1) {
    const auto enough = std::lower_bound(draws.cumulative.begin(), draws.cumulative.end() - 1, options.top_p * sum);
    draws.cumulative.erase(enough + 1, draws.cumulative.end());
  }
  if (likely < draws.cumulative.size()) draws.cumulative.resize(likely);
  order.resize(draws.cumulative.size());
  return draws;
}

}  // namespace

void check(const SamplingOptions& options) {
  TORCH_CHECK_VALUE(options.temperature >= 0 && options.top_k >= 0 && options.top_p >= 0 && options.top_p <= 1,
                    "generate: expected temperature >= 0, top_k >= 0 and top_p in [0, 1], got ", options.temperature,
                    ", ", options.top_k, " and ", options.top_p);
  TORCH_CHECK_VALUE(options.min_p >= 0 && options.min_p <= 1, "generate: expected min_p in [0, 1], got ",
                    options.min_p);
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
