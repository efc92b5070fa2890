// Gradients of a language model on calibration inputs, in FP32 and in FP16, and how far these are apart.
#pragma once

#include <ATen/core/TensorBody.h>

#include <map>
#include <memory>
#include <string>

#include "plimsoll/app/gauge/gauge_measurement.h"

namespace plimsoll::app {

// Gradients by the names of Freedoms::weights. fp32, without the loss scale, of the weights before they were multiplied.
using Gradients = std::map<std::string, at::Tensor>;

class GradientError {
 public:
  // `model` and `inputs`, whose logits are not read, must outlive it.
  GradientError(const models::LanguageModel& model, const GaugeInputs& inputs, int64_t tokens_a_step);

  // Distance of the gradients that plain FP16 finds, of a model whose FP32 weights are multiplied, to those of FP32: the
  // root of the mean of |got - want|^2 / |want|^2 over the weights that have a gradient, each with its bias: a bias alone may
  // have none but rounding, as that of keys without rotary positions. Adam sees the gradient of each weight by itself,
  // whatever its size. NaN where one is not finite.
  double operator()(const models::Exponents& exponents, double loss_scale);

 private:
  const Gradients& expected(bool has_own_head);

  const models::LanguageModel& model_;
  const models::Freedoms freedoms_;
  const GaugeInputs& inputs_;
  int64_t tokens_a_step_;
  std::map<bool, Gradients> expected_;  // by whether the head is its own: a tied one adds to the embedding's
};

}  // namespace plimsoll::app
