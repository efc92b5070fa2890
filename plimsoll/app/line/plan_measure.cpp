#include "plimsoll/app/line/plan_measure.h"

#include <cmath>
#include <limits>
#include <numeric>

namespace plimsoll::app {
namespace {

double mean_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// Standard deviation of the mean of these, which must be two at least; infinite for one alone.
double standard_error(const std::vector<double>& values) {
  if (values.size() < 2) return std::numeric_limits<double>::infinity();
  const double mean = mean_of(values);
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  const auto count = static_cast<double>(values.size());
  return std::sqrt(squares / (count - 1) / count);
}

}  // namespace

PlanDivergence divergence_of(const LineText::Judged& judged) {
  // Neighbouring tokens err alike; of one window alone there is nothing but tokens.
  const bool has_windows = judged.window_means.size() > 1;
  const std::vector<double>& samples = has_windows ? judged.window_means : judged.tokens.divergences();
  return {.mean = mean_of(judged.tokens.divergences()),
          .standard_error = standard_error(samples),
          .samples = static_cast<int64_t>(samples.size())};
}

PlanMeasure::PlanMeasure(const TextModel& model, const LineText& text, ops::CodeKind kind)
    : model_(model), text_(text), weights_(nn::weights_with_codes(model.model->module())) {
  for (const nn::ProductWeight& product : weights_) {
    codes_.push_back(std::make_shared<ops::HeldWeight>(nn::CodeSources{{.weight = product.weight.detach()}},
                                                       ops::HeldOptions{.kind = kind}));
  }
}

PlanMeasure::~PlanMeasure() { hold(std::vector<bool>(weights_.size(), true)); }

void PlanMeasure::hold(const std::vector<bool>& wide) {
  for (size_t i = 0; i < weights_.size(); ++i) weights_[i].state->weight_source.hold(wide[i] ? nullptr : codes_[i]);
}

std::vector<PlanProduct> PlanMeasure::products() {
  std::vector<PlanProduct> result;
  for (size_t i = 0; i < weights_.size(); ++i) {
    std::vector<bool> wide(weights_.size(), true);
    wide[i] = false;
    hold(wide);
    result.push_back({.name = weights_[i].state->name,
                      .weights = weights_[i].weight.numel(),
                      .divergence = divergence_of(text_.compare(model_, TextPart::kSearch, /*most_windows=*/1)).mean});
  }
  return result;
}

PlanDivergence PlanMeasure::measure(const std::vector<bool>& wide) {
  hold(wide);
  return divergence_of(text_.compare(model_, TextPart::kSearch));
}

}  // namespace plimsoll::app
