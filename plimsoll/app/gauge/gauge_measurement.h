// FP16's error of a language model on calibration inputs.
#pragma once

#include <ATen/core/TensorBody.h>

#include <functional>
#include <vector>

#include "plimsoll/models/language_model.h"

namespace plimsoll::app {

// Texts in windows, int64 [1, tokens], and FP32's logits of them.
struct GaugeInputs {
  std::vector<at::Tensor> windows, logits;
  std::function<void()> check = [] {};  // called before each window is read; it may throw

  int64_t tokens() const;
  // Every so many of the windows of `shortest` tokens or more, the first among them, so that they have at most `most`
  // tokens or are one.
  GaugeInputs spread(int64_t most, int64_t shortest = 0) const;
};

// Logits in plain FP16: with the weights' dtype outside products, and products in FP16.
at::Tensor fp16_logits(models::LanguageModel& model, const at::Tensor& tokens);

// Relative L2 distance of all FP16 logits to FP32's; NaN where they are not finite.
double fp16_error(models::LanguageModel& model, const GaugeInputs& inputs);

}  // namespace plimsoll::app
