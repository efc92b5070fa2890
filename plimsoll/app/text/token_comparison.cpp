#include "plimsoll/app/text/token_comparison.h"

#include <ATen/ops/log_softmax.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "plimsoll/app/binomial.h"
#include "plimsoll/app/divergence.h"
#include "plimsoll/app/finite_json.h"

namespace plimsoll::app {
namespace {

using nlohmann::json;

constexpr int64_t kRows = 64;  // of a vocabulary's log probabilities in FP64 at a time

}  // namespace

void TokenComparison::add(const at::Tensor& logits, const at::Tensor& reference, const at::Tensor& targets) {
  finite_ = finite_ && logits.isfinite().all().item<bool>();
  for (int64_t begin = 0; begin < logits.size(0); begin += kRows) {
    const int64_t rows = std::min(kRows, logits.size(0) - begin);
    const at::Tensor got = at::log_softmax(logits.narrow(0, begin, rows), -1, at::kDouble);
    const at::Tensor want = at::log_softmax(reference.narrow(0, begin, rows), -1, at::kDouble);
    loss_ -= got.gather(1, targets.narrow(0, begin, rows).unsqueeze(1)).sum().item<double>();
    const std::vector<double> divergence = app::divergences(want, got);
    divergences_.insert(divergences_.end(), divergence.begin(), divergence.end());
    agreeing_ += agreeing_rows(want, got, 1);
    among_five_ += agreeing_rows(want, got, 5);
  }
}

json TokenComparison::result() const {
  const auto tokens = static_cast<int64_t>(divergences_.size());
  const auto count = static_cast<double>(tokens);
  const double divergence = std::accumulate(divergences_.begin(), divergences_.end(), 0.0);
  std::vector<double> ordered = divergences_;
  // NaN has no place in an order.
  if (std::isfinite(divergence)) std::sort(ordered.begin(), ordered.end());
  const auto quantile = [&](double share) {
    if (!std::isfinite(divergence)) return json();
    return json(ordered[static_cast<size_t>(std::ceil(share * count)) - 1]);
  };
  const json agreement = binomial_json(agreeing_, tokens);
  return {{"finite", finite_},
          {"perplexity", finite_or_null(std::exp(loss_ / count))},
          {"logits_kl", finite_or_null(divergence / count)},
          {"logits_kl_p99", quantile(0.99)},
          {"logits_kl_p999", quantile(0.999)},
          {"top1_agreement", agreement.at("share")},
          {"top1_agreement_interval", agreement.at("interval")},
          {"top5_agreement", static_cast<double>(among_five_) / count}};
}

}  // namespace plimsoll::app
