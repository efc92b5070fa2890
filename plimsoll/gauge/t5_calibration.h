// The largest values of a T5, seen on inputs.
#pragma once

#include "plimsoll/gauge/search.h"
#include "plimsoll/models/t5/model.h"

namespace plimsoll::gauge {

// Collects what the values of the model's forward passes reach. The model must be in FP32, where nothing overflows.
class T5Calibration {
 public:
  // `model` must outlive it.
  explicit T5Calibration(models::T5ForConditionalGenerationImpl& model) : model_(model) {}

  // A forward pass. Of a model with a decoder the input must have decoder_input_ids.
  models::T5Output observe(const models::T5Input& input);

  const models::Amaxes& amaxes() const { return amaxes_; }

 private:
  models::T5ForConditionalGenerationImpl& model_;
  models::Amaxes amaxes_;
};

}  // namespace plimsoll::gauge
