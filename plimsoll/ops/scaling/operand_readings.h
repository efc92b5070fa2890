// Measurements of a step's operands, read from the device and made equal on all ranks.
#pragma once

#include <array>
#include <vector>

#include "plimsoll/ops/scaling/precision_controller.h"

namespace plimsoll::ops {

// One operand over all its uses in a step, each member the worst of them. Numbers without a sign, so that their largest
// of all ranks is a collective of amaxes.
struct OperandReading {
  static constexpr size_t kNumbers = 7;

  float amax = 0;      // NaN or Inf: something was not finite
  float measured = 0;  // 1: the following are known
  float error = 0, norm_error = 0, saturated = 0, flushed = 0;
  float fill = 0;  // amax as a share of the largest code

  std::array<float*, kNumbers> numbers() {
    return {&amax, &measured, &error, &norm_error, &saturated, &flushed, &fill};
  }
  recipe::OperandMeasurement measurement(recipe::Role role) const;
};

using LayerReadings = std::array<OperandReading, 3>;  // by Role

// The readings of each layer's costs, in one read.
std::vector<LayerReadings> read_costs(const std::vector<const std::vector<OperandCost>*>& layers);

// Replaces each number by the largest of the ranks'.
void reduce(const AmaxReduction& reduction, std::vector<LayerReadings>& layers);

// A product's measurement.
recipe::ProductMeasurement product_measurement(const LayerReadings& layer, recipe::GemmKind gemm);

}  // namespace plimsoll::ops
