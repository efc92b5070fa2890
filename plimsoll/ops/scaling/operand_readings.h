// Measurements of a step's operands, read from the device and made equal on all ranks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "plimsoll/ops/scaling/precision_controller.h"

namespace plimsoll::ops {

// One operand of one product in the codes of one rung, over all its uses in a step, each member the worst of them.
// Numbers without a sign, so that their largest of all ranks is a collective of amaxes.
struct OperandReading {
  static constexpr size_t kNumbers = 7;

  float measured = 0;  // 1: the following are known
  float error = 0, norm_error = 0, saturated = 0, flushed = 0, row_error = 0;
  float fill = 0;  // amax as a share of the largest code

  std::array<float*, kNumbers> numbers() {
    return {&measured, &error, &norm_error, &saturated, &flushed, &row_error, &fill};
  }
};

// All operands of a layer.
struct LayerReadings {
  std::array<float, 3> amax = {};  // by Role; NaN or Inf: something was not finite
  // By rung with codes; the two operands of each product, by GemmKind.
  std::vector<std::array<OperandReading, 6>> codes;

  std::vector<float*> numbers();
  // A product that is on this rung.
  recipe::StepMeasurement measurement(recipe::GemmKind gemm, int64_t rung) const;

 private:
  recipe::ProductMeasurement in_codes(recipe::GemmKind gemm, int64_t rung) const;
  recipe::OperandMeasurement in_codes(recipe::Role role, recipe::GemmKind gemm, int64_t rung) const;
  const OperandReading* find(recipe::Role role, recipe::GemmKind gemm, int64_t rung) const;
};

// The readings of each layer's costs, in one read.
std::vector<LayerReadings> read_costs(const recipe::Automatic& recipe,
                                      const std::vector<const std::vector<OperandCost>*>& layers);

// Replaces each number by the largest of the ranks'.
void reduce(const AmaxReduction& reduction, std::vector<LayerReadings>& layers);

}  // namespace plimsoll::ops
