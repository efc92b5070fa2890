#include "plimsoll/autoscale/out_call.h"

#include <ATen/native/Resize.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <vector>

#include "plimsoll/autoscale/moves.h"
#include "plimsoll/autoscale/several_scales_rules.h"
#include "plimsoll/autoscale/storage.h"

namespace plimsoll::autoscale {
namespace {

using torch::jit::Stack;

bool holds_scaled(const c10::IValue& value) {
  if (value.isTensor()) return is_scaled(value.toTensor());
  if (value.isTensorList()) {
    const std::vector<at::Tensor> list = value.toTensorVector();
    return std::any_of(list.begin(), list.end(), &is_scaled);
  }
  if (!value.isOptionalTensorList()) return false;
  const std::vector<std::optional<at::Tensor>> list = value.toOptionalTensorVector();
  return std::any_of(list.begin(), list.end(), [](const auto& x) { return x && is_scaled(*x); });
}

// A scaled `out` of other sizes gets memory of its own.
void resize_scaled(const std::string& name, const at::Tensor& out, at::IntArrayRef sizes) {
  auto* impl = dynamic_cast<ScaledTensorImpl*>(out.unsafeGetTensorImpl());
  TORCH_CHECK(impl != nullptr && !impl->scales().defined(), name, ": expected out of sizes ", sizes, ", got ",
              out.sizes(), ", which is a tensor of several scales or a parameter of a C++ module and keeps its sizes");
  const SharedScale& shared = impl->shared();
  const at::Tensor resized = make_scaled(
      at::empty(sizes, impl->data().options()),
      {.scale = zero_scale(), .session = shared.session, .logical = out.scalar_type(), .wide = shared.wide});
  impl->shallow_copy_from(resized.getIntrusivePtr());
}

void write_out(const std::string& name, const at::Tensor& out, const at::Tensor& result) {
  TORCH_CHECK(at::canCast(result.scalar_type(), out.scalar_type()), name, ": expected out of a dtype that ",
              result.scalar_type(), " can be cast to, got ", out.scalar_type());
  const BelowAutoscale below;
  if (at::native::resize_output_check(out, result.sizes())) {
    if (is_scaled(out)) {
      resize_scaled(name, out, result.sizes());
    } else {
      out.resize_(result.sizes());
    }
  }
  copy_value(out, result);
}

}  // namespace

void run_into(const Plan& plan, Stack& stack) {
  const std::vector<c10::IValue> outs = torch::jit::pop(stack, plan.results.size());
  if (std::any_of(stack.end() - static_cast<std::ptrdiff_t>(plan.arguments.size()), stack.end(), &holds_scaled)) {
    run_with_scales(plan, stack);
  } else {
    const BelowAutoscale below;
    plan.run.callBoxed(stack);
  }
  const std::vector<c10::IValue> results = torch::jit::pop(stack, plan.results.size());
  for (size_t i = 0; i < outs.size(); ++i) {
    write_out(plan.name, outs[i].toTensor(), results[i].toTensor());
    stack.push_back(outs[i]);
  }
}

}  // namespace plimsoll::autoscale
