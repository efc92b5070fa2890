// A model in BF16 whose products take codes and give them back, to see which of them it bears.
#pragma once

#include <cstddef>
#include <vector>

#include "plimsoll/app/line/line_model.h"
#include "plimsoll/app/line/line_text.h"
#include "plimsoll/app/line/plan_search.h"

namespace plimsoll::app {

// Mean over the tokens, and what the means of samples say about its error.
PlanDivergence divergence_of(const LineText::Judged& judged);

class PlanMeasure {
 public:
  // model: in BF16; it keeps the codes that were measured last. Both must outlive it.
  PlanMeasure(LineModel& model, const LineText& text, models::WeightDtype codes, size_t samples_of_a_product);

  // Every product that may have codes, with what it costs alone, measured on few samples.
  std::vector<PlanProduct> products();
  // On all samples to search with, under codes of the products that are not wide.
  PlanDivergence measure(const std::vector<bool>& wide);

 private:
  LineModel& model_;
  const LineText& text_;
  models::WeightDtype codes_;
  size_t samples_of_a_product_;
};

}  // namespace plimsoll::app
