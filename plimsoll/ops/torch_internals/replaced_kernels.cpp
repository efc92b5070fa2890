#include "plimsoll/ops/torch_internals/replaced_kernels.h"

#include <torch/csrc/jit/frontend/function_schema_parser.h>

#include <memory>
#include <optional>
#include <utility>

namespace plimsoll::ops {
namespace {

class ReplacedKernel final : public c10::OperatorKernel {
 public:
  ReplacedKernel(ReplacedKernels::Attempt attempt, c10::SafeKernelFunction before)
      : attempt_(std::move(attempt)), before_(std::move(before)) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, CallStack* stack) {
    if (!attempt_(*stack)) before_.callBoxed(op, keys, stack);
  }

 private:
  const ReplacedKernels::Attempt attempt_;
  const c10::SafeKernelFunction before_;
};

struct NoWarnings final : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

std::optional<c10::OperatorHandle> find_with_kernel(const std::string& op, c10::DispatchKey key) {
  const std::optional<c10::OperatorHandle> handle = c10::Dispatcher::singleton().findSchema(torch::jit::parseName(op));
  return handle && handle->hasKernelForDispatchKey(key) ? handle : std::nullopt;
}

}  // namespace

ReplacedKernels::ReplacedKernels() : library_(torch::Library::IMPL, "aten", std::nullopt, __FILE__, __LINE__) {}

void ReplacedKernels::put(const c10::OperatorHandle& op, c10::DispatchKey key, Attempt attempt) {
  NoWarnings silent;
  const c10::WarningUtils::WarningHandlerGuard guard(&silent);
  auto kernel = std::make_unique<ReplacedKernel>(std::move(attempt), op.getComputedKernelForDispatchKey(key));
  library_.impl(toString(op.operator_name()).c_str(),
                torch::dispatch(key, torch::CppFunction::makeFromBoxedFunctor(std::move(kernel))));
}

bool ReplacedKernels::replace(const std::string& op, Attempt attempt) {
  const auto handle = find_with_kernel(op, c10::DispatchKey::CPU);
  if (handle) put(*handle, c10::DispatchKey::CPU, std::move(attempt));
  return handle.has_value();
}

bool ReplacedKernels::replace_composed(const std::string& op, const Attempt& attempt) {
  const auto handle = find_with_kernel(op, c10::DispatchKey::CompositeImplicitAutograd);
  if (!handle) return false;
  // Autograd's first: a kernel on the CPU would take the composition's place in autograd.
  for (const c10::DispatchKey key : {c10::DispatchKey::AutogradCPU, c10::DispatchKey::CPU}) put(*handle, key, attempt);
  return true;
}

}  // namespace plimsoll::ops
