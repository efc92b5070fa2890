#include "plimsoll/ops/scaling/operand_slot.h"

#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <span>

#include "plimsoll/runtime/unexpected.h"

namespace plimsoll::ops {
namespace {

// A module that is converted to a narrow dtype takes its buffers along; the state itself is FP32.
void keep_fp32(at::Tensor& buffer, recipe::Role role, const char* name) {
  const at::ScalarType dtype = buffer.scalar_type();
  TORCH_CHECK(buffer.is_cpu() && (dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf), role_name(role),
              name, ": expected float32 on the CPU, got ", dtype, " on ", buffer.device());
  if (buffer.scalar_type() != at::kFloat) buffer.set_data(buffer.detach().to(at::kFloat));
}

std::span<float> values(const at::Tensor& buffer) {
  return {buffer.mutable_data_ptr<float>(), static_cast<size_t>(buffer.numel())};
}

void fit_history(OperandSlot& slot, int64_t length) {
  keep_fp32(slot.amax_history, slot.role, "_amax_history");
  if (slot.amax_history.dim() == 1 && slot.amax_history.numel() == length && slot.amax_history.is_contiguous()) return;
  const at::Tensor old = slot.amax_history.detach().contiguous();
  const at::Tensor fitted = at::zeros({length}, old.options());
  recipe::resize_history(values(old), values(fitted));
  slot.amax_history.set_data(fitted);
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

float current_scale(OperandSlot& slot) {
  keep_fp32(slot.scale, slot.role, "_scale");
  TORCH_CHECK(slot.scale.numel() == 1, role_name(slot.role), "_scale: expected one element, got ", slot.scale.sizes());
  return *slot.scale.const_data_ptr<float>();
}

void update_slot(OperandSlot& slot, const recipe::DelayedScaling& recipe, float amax) {
  float scale = current_scale(slot);
  fit_history(slot, recipe.amax_history_len);
  TORCH_CHECK(slot.step.is_cpu() && slot.step.scalar_type() == at::kLong && slot.step.numel() == 1,
              role_name(slot.role), "_step: expected one int64 on the CPU, got ", slot.step.toString(),
              slot.step.sizes());
  const recipe::DelayedState state{scale, values(slot.amax_history)};
  const format::Format codes = recipe::format_of(recipe.fp8_format, slot.role);
  int64_t& step = *slot.step.mutable_data_ptr<int64_t>();
  recipe::first_scale(recipe, codes, amax, state);
  recipe::record_amax(state, amax);
  recipe::update(recipe, codes, step, state);
  *slot.scale.mutable_data_ptr<float>() = scale;
  ++step;
}

}  // namespace plimsoll::ops
