#include "plimsoll/amp/precision_kernels.h"

#include <ATen/autocast_mode.h>
#include <torch/library.h>

#include <string>
#include <unordered_set>

#include "plimsoll/amp/precision_table.h"

namespace plimsoll::amp {
namespace {

using at::autocast::cached_cast;
using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::IValue;
using c10::OperatorHandle;
using torch::jit::Stack;

constexpr at::DeviceType kTableSwitch = at::kIPU;

std::unordered_set<std::string_view>& mended() {
  static std::unordered_set<std::string_view> ops;
  return ops;
}

void cast_argument(IValue& argument, at::ScalarType dtype) {
  if (argument.isTensor()) {
    argument = cached_cast(dtype, argument.toTensor(), at::kCPU);
  } else if (argument.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : argument.toTensorVector()) list.push_back(cached_cast(dtype, tensor, at::kCPU));
    argument = std::move(list);
  }
}

auto arguments_of(const OperatorHandle& op, Stack& stack) {
  return torch::jit::last(stack, op.schema().arguments().size());
}

void widen(at::ScalarType& dtype, const at::Tensor& tensor) {
  if (at::autocast::is_eligible(tensor, at::kCPU)) dtype = at::promote_types(dtype, tensor.scalar_type());
}

at::ScalarType widest(const OperatorHandle& op, Stack& stack) {
  at::ScalarType dtype = at::autocast::get_autocast_dtype(at::kCPU);
  for (const IValue& argument : arguments_of(op, stack)) {
    if (argument.isTensor()) {
      widen(dtype, argument.toTensor());
    } else if (argument.isTensorList()) {
      for (const at::Tensor& tensor : argument.toTensorVector()) widen(dtype, tensor);
    }
  }
  return dtype;
}

// True if the operator has a dtype of its own to compute and answer in; what the caller said there stays.
bool set_dtype_argument(const OperatorHandle& op, Stack& stack) {
  const std::optional<int> index = op.schema().argumentIndexWithName("dtype");
  if (!index) return false;
  const auto arguments = arguments_of(op, stack);
  IValue& dtype = stack[stack.size() - arguments.size() + static_cast<size_t>(*index)];
  const IValue& first = arguments.front();
  if (dtype.isNone() && first.isTensor() && at::autocast::is_eligible(first.toTensor(), at::kCPU)) {
    dtype = static_cast<int64_t>(at::kFloat);
  }
  return true;
}

template <Precision kPrecision>
void autocast_call(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  if (!precision_table_holds())
    return op.redispatchBoxed(keys & DispatchKeySet(DispatchKeySet::FULL_AFTER, DispatchKey::AutocastCPU), stack);
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(DispatchKey::AutocastCPU);
  if (kPrecision != Precision::kFp32 || !set_dtype_argument(op, *stack)) {
    at::ScalarType dtype = at::kFloat;
    if (kPrecision == Precision::kNarrow) dtype = at::autocast::get_autocast_dtype(at::kCPU);
    if (kPrecision == Precision::kWidest) dtype = widest(op, *stack);
    const size_t count = op.schema().arguments().size();
    for (size_t i = stack->size() - count; i < stack->size(); ++i) cast_argument((*stack)[i], dtype);
  }
  op.callBoxed(stack);
}

torch::CppFunction kernel(Precision precision) {
  using torch::CppFunction;
  if (precision == Precision::kNarrow) return CppFunction::makeFromBoxedFunction<&autocast_call<Precision::kNarrow>>();
  if (precision == Precision::kFp32) return CppFunction::makeFromBoxedFunction<&autocast_call<Precision::kFp32>>();
  return CppFunction::makeFromBoxedFunction<&autocast_call<Precision::kWidest>>();
}

bool torch_has(std::string_view op) {
  const size_t dot = op.find('.');
  const auto overload = dot == op.npos ? std::string() : std::string(op.substr(dot + 1));
  const auto handle = c10::Dispatcher::singleton().findOp({"aten::" + std::string(op.substr(0, dot)), overload});
  return !handle || handle->hasKernelForDispatchKey(DispatchKey::AutocastCPU);
}

}  // namespace

bool precision_table_holds() { return at::autocast::is_autocast_enabled(kTableSwitch); }
void set_precision_table_holds(bool holds) { at::autocast::set_autocast_enabled(kTableSwitch, holds); }
bool is_mended(std::string_view op) { return mended().contains(op); }

TORCH_LIBRARY_IMPL(aten, AutocastCPU, library) {
  for (const PrecisionRow& row : precision_table()) {
    if (torch_has(row.op)) continue;
    mended().insert(row.op);
    library.impl(std::string(row.op).c_str(), kernel(row.precision));
  }
}

}  // namespace plimsoll::amp
