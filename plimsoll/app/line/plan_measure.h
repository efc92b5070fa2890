// A model in BF16 whose products take codes and give them back, to see which of them it bears.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "plimsoll/app/line/line_text.h"
#include "plimsoll/app/line/plan_search.h"
#include "plimsoll/nn/held_codes.h"

namespace plimsoll::app {

// Mean over the tokens, and what the means of windows say about its error.
PlanDivergence divergence_of(const LineText::Judged& judged);

class PlanMeasure {
 public:
  // model: in BF16, of a Hugging Face directory. Both must outlive it.
  PlanMeasure(const TextModel& model, const LineText& text, ops::CodeKind kind);
  ~PlanMeasure();  // gives all codes back
  PlanMeasure(const PlanMeasure&) = delete;
  PlanMeasure& operator=(const PlanMeasure&) = delete;

  // Every product that may have codes, with what it costs alone, measured on one window.
  std::vector<PlanProduct> products();
  // On all windows to search with, under codes of the products that are not wide.
  PlanDivergence measure(const std::vector<bool>& wide);

 private:
  void hold(const std::vector<bool>& wide);

  const TextModel& model_;
  const LineText& text_;
  std::vector<nn::ProductWeight> weights_;
  std::vector<std::shared_ptr<ops::HeldWeight>> codes_;
};

}  // namespace plimsoll::app
