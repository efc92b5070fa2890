// The largest values of a language model, seen on inputs.
#pragma once

#include "plimsoll/gauge/search.h"
#include "plimsoll/models/language_model.h"

namespace plimsoll::gauge {

// A step of training, of which a text is a part: its loss is the mean over the targets of all its texts.
struct TrainingStep {
  int64_t tokens = 0;  // targets
  double loss_scale = 1;
};

// Adds to the gradients of the model those of a text's share of the step's loss, times the loss scale. tokens: int64
// [1, seq] of two or more, each of which but the first is a target.
void backward(models::LanguageModel& model, const at::Tensor& tokens, const TrainingStep& step);

// Collects what the values of the model's forward passes reach. The model must be in FP32, where nothing overflows.
class Calibration {
 public:
  // `model` must outlive it.
  explicit Calibration(models::LanguageModel& model) : model_(model) {}

  // tokens int64 [batch, seq] -> the logits.
  at::Tensor observe(const at::Tensor& tokens);
  // A forward and a backward pass, which leaves the model without gradients. tokens: backward().
  void observe_gradients(const at::Tensor& tokens, const TrainingStep& step);

  const models::Amaxes& amaxes() const { return amaxes_; }
  // Amaxes of the values' gradients, by the names of the values.
  models::Amaxes gradient_amaxes(const models::Freedoms& freedoms) const;

 private:
  models::LanguageModel& model_;
  models::Amaxes amaxes_, gradients_;
};

}  // namespace plimsoll::gauge
