#include "plimsoll/ops/scaling/operand_slot.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <span>

#include "plimsoll/runtime/unexpected.h"

namespace plimsoll::ops {
namespace {

// A module that is converted to a narrow dtype takes its buffers along; the state itself is FP32.
void keep_fp32(at::Tensor& buffer, recipe::Role role, const char* name) {
  const at::ScalarType dtype = buffer.scalar_type();
  TORCH_CHECK(buffer.is_cpu() && (dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf), role_name(role),
              name, ": expected float32 on the CPU, got ", dtype, " on ", buffer.device());
  if (dtype != at::kFloat) buffer.set_data(buffer.detach().to(at::kFloat));
}

std::span<float> values(const at::Tensor& buffer) {
  return {buffer.mutable_data_ptr<float>(), static_cast<size_t>(buffer.numel())};
}

std::vector<float> fitted_history(const at::Tensor& history, int64_t length) {
  const at::Tensor old = history.detach().contiguous();
  std::vector<float> fitted(static_cast<size_t>(length));
  if (old.dim() == 1 && old.numel() == length) {
    std::ranges::copy(values(old), fitted.begin());
  } else {
    recipe::resize_history(values(old), fitted);
  }
  return fitted;
}

}  // namespace

OperandSlot::OperandSlot(recipe::Role slot_role)
    : role(slot_role), scale(at::zeros({1})), amax_history(at::zeros({1})), step(at::zeros({1}, at::kLong)) {}

std::string_view role_name(recipe::Role role) {
  switch (role) {
    case recipe::Role::kInput:
      return "input";
    case recipe::Role::kWeight:
      return "weight";
    case recipe::Role::kGradOutput:
      return "grad_output";
  }
  runtime::unexpected("role", static_cast<int>(role));
}

const at::Tensor& OperandSlot::scale_memory() {
  keep_fp32(scale, role, "_scale");
  TORCH_CHECK(scale.numel() == 1, role_name(role), "_scale: expected one element, got ", scale.sizes());
  return scale;
}

float OperandSlot::value_on_host() { return *scale_memory().const_data_ptr<float>(); }

ScaleRef OperandSlot::scale_for(const recipe::DelayedScaling& recipe, const std::function<AmaxSlot()>& find_amax) {
  const ScaleRef result = ScaleRef(scale_memory()).copy();
  float& value = *result.memory().mutable_data_ptr<float>();
  if (value == recipe::kNoScale) {
    const AmaxSlot amax = find_amax();
    const bool has_function = static_cast<bool>(recipe.scaling_factor_compute_algo);
    recipe::first_scale(recipe, recipe::format_of(recipe.fp8_format, role),
                        has_function || !amax.memory().is_cpu() ? amax.read_on_host() : *amax.data(), {value, {}});
  }
  // No scale yet and nothing to choose one by: all zero, or not finite. Codes are read with their scale, too.
  if (value == recipe::kNoScale) value = 1.0f;
  return result;
}

OperandSlot::Update OperandSlot::update_of(const recipe::DelayedScaling& recipe, const Reading& reading) {
  keep_fp32(amax_history, role, "_amax_history");
  TORCH_CHECK(step.is_cpu() && step.scalar_type() == at::kLong && step.numel() == 1, role_name(role),
              "_step: expected one int64 on the CPU, got ", step.toString(), step.sizes());
  Update next{.scale = reading.scale, .amax_history = fitted_history(amax_history, recipe.amax_history_len)};
  const recipe::DelayedState state{next.scale, next.amax_history};
  const format::Format codes = recipe::format_of(recipe.fp8_format, role);
  recipe::first_scale(recipe, codes, reading.amax, state);
  recipe::record_amax(state, reading.amax);
  recipe::update(recipe, codes, *step.const_data_ptr<int64_t>(), state);
  return next;
}

void OperandSlot::take(const Update& update) {
  const auto length = static_cast<int64_t>(update.amax_history.size());
  if (amax_history.dim() != 1 || amax_history.numel() != length || !amax_history.is_contiguous()) {
    amax_history.set_data(at::empty({length}, amax_history.options()));
  }
  std::ranges::copy(update.amax_history, values(amax_history).begin());
  *scale.mutable_data_ptr<float>() = update.scale;
  ++*step.mutable_data_ptr<int64_t>();
}

OperandSlot OperandSlot::pinned() {
  OperandSlot result(role);
  result.scale = ScaleRef(scale_memory()).copy().memory();
  return result;
}

}  // namespace plimsoll::ops
