#include "plimsoll/ops/watch/wider_call.h"

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/clone.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <utility>

namespace plimsoll::ops {
namespace {

// Nothing but a function of its arguments: operators of other libraries may send messages or count their calls, and those
// of ours with state record amaxes in it.
bool is_function(const c10::FunctionSchema& schema) {
  const bool is_known = schema.name().starts_with("aten::") || schema.name().starts_with("plimsoll::");
  return is_known && !schema.is_mutable() &&
         std::ranges::none_of(schema.arguments(), [](const c10::Argument& argument) {
           return argument.type()->kind() == c10::TypeKind::ClassType || argument.name() == "state";
         });
}

// Generators of random numbers that an operator may draw from, as they were when this object was made.
class Generators {
 public:
  explicit Generators(const Values& arguments) {
    keep(at::globalContext().defaultGenerator(at::kCPU));
    for (const c10::IValue& value : arguments) {
      if (value.isGenerator()) keep(value.toGenerator());
    }
  }

  // Puts them back to where they were. True if one had moved.
  bool restore() {
    bool moved = false;
    for (auto& [generator, state] : kept_) {
      const std::lock_guard lock(generator.mutex());
      if (generator.get_state().equal(state)) continue;
      generator.set_state(state);
      moved = true;
    }
    return moved;
  }

 private:
  void keep(at::Generator generator) {
    const std::lock_guard lock(generator.mutex());
    at::Tensor state = generator.get_state();
    kept_.emplace_back(std::move(generator), std::move(state));
  }
  std::vector<std::pair<at::Generator, at::Tensor>> kept_;
};

// Memory of its own, because a norm writes its running statistics without telling.
at::Tensor widened(const at::Tensor& tensor, const Widen& widen) {
  if (!is_real(tensor)) return tensor;
  at::Tensor wide = widen(tensor);
  return wide.is_alias_of(tensor) ? wide.clone() : wide;
}

c10::IValue widened(const c10::IValue& value, const c10::Argument& argument, const Widen& widen) {
  if (value.isTensor()) return widened(value.toTensor(), widen);
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(widened(tensor, widen));
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
  if (!handle || !is_function(handle->schema())) return {};
  const at::NoGradGuard no_grad;
  const at::RecordFunctionGuard quiet(/*is_enabled=*/false);
  Generators generators(arguments);
  Values stack;
  try {
    for (size_t i = 0; i < arguments.size(); ++i) {
      stack.push_back(widened(arguments[i], handle->schema().arguments()[i], widen));
    }
    handle->callBoxed(&stack);
  } catch (const std::exception&) {
    stack.clear();
  }
  if (generators.restore()) stack.clear();
  return stack;
}

}  // namespace plimsoll::ops
