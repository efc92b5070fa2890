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
  if (!cost.scale.defined()) return 1;
  return amax / scale / format::max_finite(cost.operand.format);
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

size_t place_of(Role role, GemmKind gemm) {
  return 2 * static_cast<size_t>(gemm) + (operands_of(gemm).first == role ? 0 : 1);
}

// The reading is that of each product that has such codes on its rung.
void raise_readers(const recipe::Automatic& recipe, const OperandCost& cost, OperandReading& reading,
                   LayerReadings& layer) {
  for (const GemmKind gemm : recipe::kGemmKinds) {
    if (!recipe::takes_part(cost.role, gemm)) continue;
    const int64_t rung = recipe.rung_of(cost.operand, cost.role, gemm);
    if (!recipe.has_codes(rung)) continue;
    const auto worst = layer.codes[static_cast<size_t>(rung)][place_of(cost.role, gemm)].numbers();
    const auto numbers = reading.numbers();
    for (size_t i = 0; i < worst.size(); ++i) raise(*worst[i], *numbers[i]);
  }
}

}  // namespace

std::vector<float*> LayerReadings::numbers() {
  std::vector<float*> all;
  for (float& each : amax) all.push_back(&each);
  for (auto& rung : codes) {
    for (OperandReading& reading : rung) {
      const auto numbers = reading.numbers();
      all.insert(all.end(), numbers.begin(), numbers.end());
    }
  }
  return all;
}

// Fused operators make the codes of an input that grad_weight reads in the backward pass alone, where nothing is measured:
// the other product's codes of the same operand speak for them.
const OperandReading* LayerReadings::find(Role role, GemmKind gemm, int64_t rung) const {
  if (rung < 0 || rung >= static_cast<int64_t>(codes.size())) return nullptr;
  const auto& readings = codes[static_cast<size_t>(rung)];
  const OperandReading* found = &readings[place_of(role, gemm)];
  for (const GemmKind other : recipe::kGemmKinds) {
    if (found->measured == 0 && recipe::takes_part(role, other)) found = &readings[place_of(role, other)];
  }
  return found->measured == 0 ? nullptr : found;
}

recipe::OperandMeasurement LayerReadings::in_codes(Role role, GemmKind gemm, int64_t rung) const {
  const bool is_finite = std::isfinite(amax[static_cast<size_t>(role)]);
  const OperandReading* const found = find(role, gemm, rung);
  if (found == nullptr) return {.role = role, .finite = is_finite};
  return {.role = role,
          .finite = is_finite && std::isfinite(found->error) && std::isfinite(found->norm_error),
          .error = double{role == Role::kWeight ? std::max(found->error, found->row_error) : found->error},
          .norm_error = double{found->norm_error},
          .saturated = double{found->saturated},
          .flushed = double{found->flushed},
          // No number says "nothing lies below the largest code": headroom of zeros is that of the smallest float.
          .headroom_bits = -std::log2(double{std::max(found->fill, std::numeric_limits<float>::min())})};
}

recipe::ProductMeasurement LayerReadings::in_codes(GemmKind gemm, int64_t rung) const {
  const auto [a, b] = operands_of(gemm);
  return {.a = in_codes(a, gemm, rung),
          .b = in_codes(b, gemm, rung),
          .is_measured = find(a, gemm, rung) != nullptr || find(b, gemm, rung) != nullptr};
}

recipe::StepMeasurement LayerReadings::measurement(GemmKind gemm, int64_t rung) const {
  return {.own = in_codes(gemm, rung), .below = in_codes(gemm, rung - 1)};
}

std::vector<LayerReadings> read_costs(const recipe::Automatic& recipe,
                                      const std::vector<const std::vector<OperandCost>*>& layers) {
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
    layer.codes.resize(static_cast<size_t>(recipe.last_rung()));
    for (const OperandCost& cost : *costs) {
      const float amax = without_sign(*next++);
      const float scale = cost.scale.defined() ? *next++ : 1.0f;
      raise(layer.amax[static_cast<size_t>(cost.role)], amax);
      if (!cost.statistic.defined()) continue;
      OperandReading reading{.measured = 1};
      for (float* const number :
           {&reading.error, &reading.norm_error, &reading.saturated, &reading.flushed, &reading.row_error}) {
        *number = without_sign(*next++);
      }
      reading.fill = without_sign(fill_of(cost, amax, scale));
      raise_readers(recipe, cost, reading, layer);
    }
  }
  return readings;
}

void reduce(const AmaxReduction& reduction, std::vector<LayerReadings>& layers) {
  std::vector<float*> numbers;
  for (LayerReadings& layer : layers) {
    const std::vector<float*> own = layer.numbers();
    numbers.insert(numbers.end(), own.begin(), own.end());
  }
  if (numbers.empty()) return;
  std::vector<float> values;
  for (const float* const number : numbers) values.push_back(*number);
  reduction.all_reduce_max(values);
  for (size_t i = 0; i < values.size(); ++i) *numbers[i] = values[i];
}

}  // namespace plimsoll::ops
