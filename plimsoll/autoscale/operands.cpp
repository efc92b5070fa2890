#include "plimsoll/autoscale/operands.h"

#include <c10/core/ScalarType.h>

#include <cmath>

#include "plimsoll/autoscale/storage.h"

namespace plimsoll::autoscale {
namespace {

// Runs f on each tensor of an argument.
template <class F>
void for_each_tensor(ArgumentKind kind, const c10::IValue& value, F&& f) {
  if (value.isNone()) return;
  if (kind == ArgumentKind::kTensor) {
    f(value.toTensor());
  } else if (kind == ArgumentKind::kTensors) {
    for (const at::Tensor& tensor : value.toTensorList()) f(tensor);
  } else if (kind == ArgumentKind::kOptionalTensors) {
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList()) f(tensor.value_or(at::Tensor()));
  }
}

// A plain operand beside values in FP32, which the kernels of many operators ask to be of their dtype.
at::Tensor plain_value(const Operand& operand) {
  const at::Tensor& x = operand.tensor;
  const bool stays = operand.written && !operand.written_unsaid;
  return stays || !x.is_floating_point() || x.layout() != at::kStrided ? x : x.to(at::kFloat);
}

// A fresh tensor where the kernel writes into it.
at::Tensor value_for(const Operand& operand) {
  if (!is_scaled(operand.tensor)) return plain_value(operand);
  if (!operand.written) return value_of(operand.tensor).to(at::kFloat);
  const ScaledTensorImpl& impl = scaled_impl(operand.tensor);
  const at::Tensor value = value_to_write(impl);
  return value.is_alias_of(impl.data()) ? value.clone() : value;
}

}  // namespace

Operands::Operands(const Plan& plan, const torch::jit::Stack& stack) {
  const size_t base = stack.size() - plan.arguments.size();
  for (size_t i = 0; i < plan.arguments.size(); ++i) {
    const ArgumentPlan& argument = plan.arguments[i];
    for_each_tensor(argument.kind, stack[base + i], [&](const at::Tensor& tensor) { add(tensor, argument, i); });
  }
  if (plan.in_place) operands_.front().written = true;
  // As torch promotes: numbers and tensors without dimensions decide where there is nothing else.
  std::optional<at::ScalarType> with_dimensions, without;
  for (const Operand& operand : operands_) {
    if (!operand.tensor.defined() || !operand.tensor.is_floating_point()) continue;
    auto& dtype = operand.tensor.dim() > 0 ? with_dimensions : without;
    const at::ScalarType own = operand.tensor.scalar_type();
    dtype = dtype ? at::promote_types(*dtype, own) : own;
  }
  TORCH_CHECK(session_ != nullptr, "autoscale: ", plan.name, ": expected a scaled tensor, got none");
  logical_ = with_dimensions.value_or(without.value_or(at::kFloat));
}

void Operands::add(const at::Tensor& tensor, const ArgumentPlan& plan, size_t argument) {
  operands_.push_back({.tensor = tensor,
                       .use = plan.use,
                       .written = plan.written || plan.written_unsaid,
                       .written_unsaid = plan.written_unsaid,
                       .argument = argument});
  strided_ &= !tensor.defined() || tensor.layout() == at::kStrided;
  if (!is_scaled(tensor)) return;
  const SharedScale& shared = scaled_impl(tensor).shared();
  if (session_ == nullptr) session_ = shared.session;
  wide_ |= shared.wide && tensor.dim() > 0;
  gradient_ |= shared.gradient;
  note_spread(tensor, plan.use);
}

// Numbers, and what they are expanded to, fit any data.
void Operands::note_spread(const at::Tensor& tensor, Use use) {
  const ScaledTensorImpl& impl = scaled_impl(tensor);
  if (use == Use::kAnyScale || use == Use::kCompared || tensor.dim() == 0 || impl.shared().base.dim() == 0) return;
  (impl.data().scalar_type() == at::kFloat ? has_spread_ : has_narrow_) = true;
}

at::ScalarType Operands::result_dtype(int64_t dimensions, bool spreads) const {
  const bool keeps_fp32 = widens_spread(session_->settings().policy) && (spreads || spread());
  return storage_dtype(*session_, dimensions, wide_ || keeps_fp32);
}

bool Operands::enter_number(Operand& operand) const {
  const at::Tensor& tensor = operand.tensor;
  if (tensor.dim() > 0 || session_->settings().policy.method != Method::kAutoscale) return false;
  const Scale scale = scale_of_number(tensor.item<double>());
  if (scale.is_zero() || std::fabs(scale.rms()) >= kSlack) return false;
  operand.data = tensor;
  operand.scale = with_exponent(scale, 0);
  return true;
}

void Operands::enter() {
  for (Operand& operand : operands_) {
    const at::Tensor& tensor = operand.tensor;
    if (!tensor.defined()) continue;
    if (operand.is_value()) {
      operand.data = value_for(operand);
      if (is_scaled(tensor)) operand.scale = scaled_impl(tensor).scale();
    } else if (is_scaled(tensor)) {
      operand.data = operand.written ? data_to_write(scaled_impl(tensor)) : scaled_impl(tensor).data();
      operand.scale = scaled_impl(tensor).scale();
    } else if (operand.use == Use::kAnyScale || tensor.scalar_type() == at::kBool) {
      operand.data = tensor;
    } else if (!enter_number(operand)) {
      const Encoded encoded = encode_plain(tensor, *session_, storage_dtype(*session_, tensor.dim(), wide_));
      operand.data = encoded.data;
      operand.scale = encoded.scale;
    }
  }
}

void Operands::enter_values() {
  for (Operand& operand : operands_) {
    if (operand.tensor.defined()) operand.data = value_for(operand);
    operand.scale = {};
  }
}

bool Operands::one_format() const {
  for (const Operand& operand : operands_) {
    if (!operand.data.defined() || !operand.data.is_floating_point() || operand.use == Use::kAnyScale) continue;
    if (operand.is_value()) return false;
    if (operand.data.dim() > 0 && operand.data.scalar_type() != session_->settings().storage) return false;
  }
  return true;
}

void Operands::widen() {
  for (Operand& operand : operands_)
    if (operand.is_data() && operand.data.is_floating_point()) operand.data = operand.data.to(at::kFloat);
}

void Operands::write(const Plan& plan, torch::jit::Stack& stack) const {
  const size_t base = stack.size() - plan.arguments.size();
  auto next = operands_.begin();
  for (size_t i = 0; i < plan.arguments.size(); ++i) {
    c10::IValue& value = stack[base + i];
    if (value.isNone()) continue;
    if (plan.arguments[i].kind == ArgumentKind::kTensor) {
      value = (next++)->data;
    } else if (plan.arguments[i].kind == ArgumentKind::kTensors) {
      c10::List<at::Tensor> list;
      for (size_t count = value.toListRef().size(); count > 0; --count) list.push_back((next++)->data);
      value = std::move(list);
    } else if (plan.arguments[i].kind == ArgumentKind::kOptionalTensors) {
      c10::List<std::optional<at::Tensor>> list;
      for (size_t count = value.toListRef().size(); count > 0; --count, ++next)
        list.push_back(next->data.defined() ? std::optional(next->data) : std::nullopt);
      value = std::move(list);
    }
  }
}

}  // namespace plimsoll::autoscale
