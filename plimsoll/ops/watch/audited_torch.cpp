#include "plimsoll/ops/watch/audited_torch.h"

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "plimsoll/ops/tensor/dtype.h"
#include "plimsoll/ops/watch/module_paths.h"
#include "plimsoll/ops/watch/wider_call.h"
#include "plimsoll/watch/audit.h"

namespace plimsoll::ops {
namespace {

thread_local int audited_depth = 0;  // of watched operators inside each other

struct AuditedCall : at::ObserverContext {
  int64_t rows_before = 0;
  std::vector<watch::AuditOperand> operands;
  double terms = 0;  // of each sum of a product; 0: not known
  ~AuditedCall() override { --audited_depth; }
};

// "fp32", or torch's own name of a dtype that the library has no kernels for.
std::string dtype_name(const at::Tensor& tensor) {
  const at::ScalarType dtype = tensor.scalar_type();
  const bool is_ours = dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf;
  return is_ours ? std::string(format::info(format_of(dtype, "audit")).name) : c10::toString(dtype);
}

// Place among the arguments of a product's left operand, whose last dimension is summed over; -1 of other operators.
int left_operand(std::string_view name) {
  constexpr std::array<std::string_view, 6> kFirst = {"aten::linear", "aten::matmul", "aten::mm",
                                                      "aten::bmm",    "aten::mv",     "aten::dot"};
  constexpr std::array<std::string_view, 4> kSecond = {"aten::addmm", "aten::addmv", "aten::baddbmm", "aten::addbmm"};
  if (std::ranges::find(kFirst, name) != kFirst.end()) return 0;
  return std::ranges::find(kSecond, name) != kSecond.end() ? 1 : -1;
}

std::unique_ptr<at::ObserverContext> audit_begin(const at::RecordFunction& function) {
  const watch::Audit* const audit = watch::auditing();
  const std::string_view name = function.name();
  if (audit == nullptr || std::ranges::find(kWatchedOperators, name) == kWatchedOperators.end()) return nullptr;
  auto call = std::make_unique<AuditedCall>();
  if (audited_depth++ > 0) return call;
  call->rows_before = audit->calls();
  const auto schema = function.operator_schema();
  const auto inputs = function.inputs();
  for (size_t i = 0; schema && i < std::min(inputs.size(), schema->arguments().size()); ++i) {
    if (!inputs[i].isTensor() || !inputs[i].toTensor().defined()) continue;
    const at::Tensor& tensor = inputs[i].toTensor();
    if (!tensor.is_floating_point()) continue;
    call->operands.push_back({.name = schema->arguments()[i].name(), .format = dtype_name(tensor)});
    const bool is_left = static_cast<int>(i) == left_operand(name) && tensor.dim() > 0;
    if (is_left) call->terms = static_cast<double>(tensor.size(-1));
  }
  return call;
}

void audit_end(const at::RecordFunction& function, at::ObserverContext* context) {
  watch::Audit* const audit = watch::auditing();
  auto* const call = static_cast<AuditedCall*>(context);
  if (call == nullptr || audit == nullptr || call->operands.empty() || audit->calls() != call->rows_before) return;
  const std::vector<at::Tensor> results = tensors_of(function.outputs());
  const double outputs = results.empty() ? 0 : static_cast<double>(results.front().numel());
  audit->add({.layer = {},
              .op = function.name(),
              .operands = std::move(call->operands),
              .output = results.empty() ? "" : dtype_name(results.front()),
              .kernel = "torch",
              .decided = "torch",
              .operations = 2 * outputs * call->terms});
}

}  // namespace

AuditedTorch::AuditedTorch()
    : handle_(at::addThreadLocalCallback(at::RecordFunctionCallback(audit_begin, audit_end)
                                             .needsInputs(true)
                                             .needsOutputs(true)
                                             .scopes({at::RecordScope::FUNCTION}))) {}

AuditedTorch::~AuditedTorch() { at::removeCallback(handle_); }

}  // namespace plimsoll::ops
