#include "plimsoll/ops/scaling/operand_readings.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace plimsoll::ops {
namespace {

using recipe::GemmKind;
using recipe::Role;

// NaN > Inf > finite, of numbers without a sign.
void raise(float& largest, float value) {
  if (std::bit_cast<uint32_t>(value) > std::bit_cast<uint32_t>(largest)) largest = value;
}

float without_sign(float value) {
  return std::isfinite(value) ? value : std::numeric_limits<float>::quiet_NaN();  // a processor's own NaN is negative
}

float fill_of(const OperandCost& cost, float amax, float scale) {
  if (cost.by_blocks) return 1;
  return amax / scale / format::max_finite(cost.format);
}

std::pair<Role, Role> operands_of(GemmKind gemm) {
  switch (gemm) {
    case GemmKind::kOutput:
      return {Role::kInput, Role::kWeight};
    case GemmKind::kGradInput:
      return {Role::kGradOutput, Role::kWeight};
    case GemmKind::kGradWeight:
      break;
  }
  return {Role::kGradOutput, Role::kInput};
}

}  // namespace

recipe::OperandMeasurement OperandReading::measurement(Role role) const {
  return {.role = role,
          .finite = std::isfinite(amax) && std::isfinite(error) && std::isfinite(norm_error),
          .error = double{error},
          .norm_error = double{norm_error},
          .saturated = double{saturated},
          .flushed = double{flushed},
          // No number says "nothing lies below the largest code": headroom of zeros is that of the smallest float.
          .headroom_bits = -std::log2(double{std::max(fill, std::numeric_limits<float>::min())})};
}

std::vector<LayerReadings> read_costs(const std::vector<const std::vector<OperandCost>*>& layers) {
  std::vector<at::Tensor> memory;
  for (const std::vector<OperandCost>* const costs : layers) {
    for (const OperandCost& cost : *costs) {
      memory.push_back(cost.amax.memory());
      if (cost.scale.defined()) memory.push_back(cost.scale.memory());
      if (cost.statistic.defined()) memory.push_back(cost.statistic);
    }
  }
  const std::vector<float> values = read_on_host(memory);
  auto next = values.begin();
  std::vector<LayerReadings> readings;
  for (const std::vector<OperandCost>* const costs : layers) {
    LayerReadings& layer = readings.emplace_back();
    for (const OperandCost& cost : *costs) {
      OperandReading& reading = layer[static_cast<size_t>(cost.role)];
      const float amax = without_sign(*next++);
      const float scale = cost.scale.defined() ? *next++ : 1.0f;
      raise(reading.amax, amax);
      if (!cost.statistic.defined()) continue;
      reading.measured = 1;
      for (float* const number : {&reading.error, &reading.norm_error, &reading.saturated, &reading.flushed}) {
        raise(*number, without_sign(*next++));
      }
      raise(reading.fill, without_sign(fill_of(cost, amax, scale)));
    }
  }
  return readings;
}

void reduce(const AmaxReduction& reduction, std::vector<LayerReadings>& layers) {
  std::vector<float> numbers;
  const auto each = [&](auto visit) {
    for (LayerReadings& layer : layers) {
      for (OperandReading& reading : layer) {
        for (float* const number : reading.numbers()) visit(*number);
      }
    }
  };
  each([&](float& number) { numbers.push_back(number); });
  if (numbers.empty()) return;
  reduction.all_reduce_max(numbers);
  auto next = numbers.begin();
  each([&](float& number) { number = *next++; });
}

recipe::ProductMeasurement product_measurement(const LayerReadings& layer, GemmKind gemm) {
  const auto [a, b] = operands_of(gemm);
  const OperandReading &left = layer[static_cast<size_t>(a)], &right = layer[static_cast<size_t>(b)];
  return {.a = left.measurement(a), .b = right.measurement(b), .is_measured = left.measured > 0 || right.measured > 0};
}

}  // namespace plimsoll::ops
