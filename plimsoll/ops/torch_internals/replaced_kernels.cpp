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

}  // namespace

ReplacedKernels::ReplacedKernels()
    : library_(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__) {}

bool ReplacedKernels::replace(const std::string& op, Attempt attempt) {
  const std::optional<c10::OperatorHandle> handle = c10::Dispatcher::singleton().findSchema(torch::jit::parseName(op));
  if (!handle || !handle->hasKernelForDispatchKey(c10::DispatchKey::CPU)) return false;
  NoWarnings silent;
  const c10::WarningUtils::WarningHandlerGuard guard(&silent);
  library_.impl(op.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<ReplacedKernel>(
                                std::move(attempt), handle->getComputedKernelForDispatchKey(c10::DispatchKey::CPU))));
  return true;
}

}  // namespace plimsoll::ops
