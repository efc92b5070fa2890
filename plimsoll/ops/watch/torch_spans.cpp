#include "plimsoll/ops/watch/torch_spans.h"

#include <optional>
#include <string_view>

#include "plimsoll/ops/tensor/traffic.h"
#include "plimsoll/watch/profile.h"

namespace plimsoll::ops {
namespace {

// A phase alone is open.
constexpr size_t kInsidePhase = 1;

template <class Values>
double traffic_of(const Values& values) {
  double bytes = 0;
  for (const c10::IValue& value : values) {
    if (value.isTensor()) bytes += traffic(value.toTensor());
    if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) bytes += traffic(tensor);
    }
  }
  return bytes;
}

struct OpenSpan : at::ObserverContext {
  explicit OpenSpan(const char* name) { span.emplace(name); }
  std::optional<watch::Span> span;
};

// Operators of our own library open spans themselves, and autograd's engine wraps other operators.
bool opens_span(std::string_view name) { return !name.starts_with("plimsoll::") && !name.starts_with("autograd::"); }

std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
  if (watch::open_spans() != kInsidePhase || !opens_span(function.name())) return nullptr;
  auto context = std::make_unique<OpenSpan>(function.name());
  context->span->add({.bytes = traffic_of(function.inputs())});
  return context;
}

void end(const at::RecordFunction& function, at::ObserverContext* context) {
  if (context == nullptr) return;
  std::optional<watch::Span>& span = static_cast<OpenSpan*>(context)->span;
  span->add({.bytes = traffic_of(function.outputs())});
  span.reset();
}

}  // namespace

TorchSpans::TorchSpans()
    : handle_(at::addThreadLocalCallback(at::RecordFunctionCallback(begin, end)
                                             .needsInputs(true)
                                             .needsOutputs(true)
                                             .scopes({at::RecordScope::FUNCTION}))) {}

TorchSpans::~TorchSpans() { at::removeCallback(handle_); }

}  // namespace plimsoll::ops
