// The largest values of a Gpt, seen on inputs or bounded from its weights.
#pragma once

#include "plimsoll/gauge/search.h"
#include "plimsoll/models/gpt/model.h"

namespace plimsoll::gauge {

// Collects what the values of the model's forward passes reach. The model must be in FP32, where nothing overflows.
class GptCalibration {
 public:
  // `model` must outlive it.
  explicit GptCalibration(models::GptImpl& model) : model_(model) {}

  // tokens int64 [batch, seq] -> the logits.
  at::Tensor observe(const at::Tensor& tokens);

  const Amaxes& amaxes() const { return amaxes_; }

 private:
  models::GptImpl& model_;
  Amaxes amaxes_;
};

// What no input can exceed: after a norm a token's length is at most sqrt(dim) before the norm's weight and bias.
Amaxes worst_case_amaxes(const models::GptImpl& model);

}  // namespace plimsoll::gauge
