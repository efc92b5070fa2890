#include "plimsoll/app/line/plan_measure.h"

#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

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
  // Neighbouring tokens err alike; of one sample alone there is nothing but tokens.
  const bool has_samples = judged.sample_means.size() > 1;
  const std::vector<double>& samples = has_samples ? judged.sample_means : judged.tokens.divergences();
  return {.mean = mean_of(judged.tokens.divergences()),
          .standard_error = standard_error(samples),
          .samples = static_cast<int64_t>(samples.size())};
}

PlanMeasure::PlanMeasure(LineModel& model, const LineText& text, models::WeightDtype codes, size_t samples_of_a_product)
    : model_(model), text_(text), codes_(codes), samples_of_a_product_(samples_of_a_product) {}

std::vector<PlanProduct> PlanMeasure::products() {
  std::vector<PlanProduct> result;
  const std::vector<LineProduct>& all = model_.products();
  for (size_t i = 0; i < all.size(); ++i) {
    std::vector<bool> wide(all.size(), true);
    wide[i] = false;
    model_.hold_codes(codes_, wide);
    PlanProduct product{
        .name = all[i].front().name,
        .divergence = divergence_of(text_.compare(model_, TextPart::kSearch, samples_of_a_product_)).mean};
    for (const LineWeight& weight : all[i]) product.weights += weight.elements;
    result.push_back(std::move(product));
  }
  return result;
}

PlanDivergence PlanMeasure::measure(const std::vector<bool>& wide) {
  model_.hold_codes(codes_, wide);
  return divergence_of(text_.compare(model_, TextPart::kSearch));
}

}  // namespace plimsoll::app
