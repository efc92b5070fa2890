// The largest values of a language model, seen on inputs.
#pragma once

#include "plimsoll/gauge/search.h"
#include "plimsoll/models/language_model.h"

namespace plimsoll::gauge {

// Collects what the values of the model's forward passes reach. The model must be in FP32, where nothing overflows.
class Calibration {
 public:
  // `model` must outlive it.
  explicit Calibration(models::LanguageModel& model) : model_(model) {}

  // tokens int64 [batch, seq] -> the logits.
  at::Tensor observe(const at::Tensor& tokens);

  const models::Amaxes& amaxes() const { return amaxes_; }

 private:
  models::LanguageModel& model_;
  models::Amaxes amaxes_;
};

}  // namespace plimsoll::gauge
