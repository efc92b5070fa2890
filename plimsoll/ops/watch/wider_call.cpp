#include "plimsoll/ops/watch/wider_call.h"

#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>

#include <string_view>

namespace plimsoll::ops {
namespace {

bool draws_numbers(std::string_view name) { return name.find("drop") != name.npos || name.find("rand") != name.npos; }

c10::IValue widened(const c10::IValue& value, const c10::Argument& argument, const Widen& widen) {
  if (value.isTensor()) return is_real(value.toTensor()) ? c10::IValue(widen(value.toTensor())) : value;
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(is_real(tensor) ? widen(tensor) : tensor);
    return list;
  }
  const c10::Type& type = *argument.real_type();
  const auto optional = type.castRaw<c10::OptionalType>();
  const bool is_dtype =
      (optional == nullptr ? type : *optional->getElementType()).kind() == c10::TypeKind::ScalarTypeType;
  const bool is_narrow =
      is_dtype && value.isInt() && (value.toScalarType() == at::kHalf || value.toScalarType() == at::kBFloat16);
  return is_narrow ? c10::IValue(at::kFloat) : value;
}

}  // namespace

std::vector<at::Tensor> tensors_of(const Values& values) {
  std::vector<at::Tensor> tensors;
  for (const c10::IValue& value : values) {
    if (value.isTensor()) tensors.push_back(value.toTensor());
    if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) tensors.push_back(tensor);
    }
  }
  std::erase_if(tensors, [](const at::Tensor& tensor) { return !tensor.defined() || !tensor.has_storage(); });
  return tensors;
}

bool is_real(const at::Tensor& tensor) {
  if (!tensor.defined()) return false;
  const at::ScalarType dtype = tensor.scalar_type();
  return dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16;
}

Values run_wider(const c10::OperatorName& name, const Values& arguments, const Widen& widen) {
  const auto handle = c10::Dispatcher::singleton().findSchema(name);
  if (!handle || handle->schema().is_mutable() || draws_numbers(name.name)) return {};
  const at::NoGradGuard no_grad;
  const at::RecordFunctionGuard quiet(/*is_enabled=*/false);
  try {
    Values stack;
    for (size_t i = 0; i < arguments.size(); ++i) {
      stack.push_back(widened(arguments[i], handle->schema().arguments()[i], widen));
    }
    handle->callBoxed(&stack);
    return stack;
  } catch (const c10::Error&) {
    return {};
  }
}

}  // namespace plimsoll::ops
