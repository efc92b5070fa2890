#include "plimsoll/autoscale/sums.h"

#include "plimsoll/autoscale/composition.h"
#include "plimsoll/autoscale/execute.h"
#include "plimsoll/autoscale/operands.h"
#include "plimsoll/autoscale/storage.h"
#include "plimsoll/ops/tensor/quantize.h"

namespace plimsoll::autoscale {
namespace {

using torch::jit::Stack;

// The arguments of sum.dim_IntList: self, dim, keepdim, dtype.
bool sums_rows(const at::Tensor& self, const Stack& stack) {
  const auto last = [&](size_t i) -> const c10::IValue& { return stack[stack.size() - i]; };
  if (!is_scaled(self) || self.dim() != 2 || self.scalar_type() != at::kFloat || !last(1).isNone() || last(3).isNone())
    return false;
  const c10::List<int64_t> dims = last(3).toIntList();
  const ScaledTensorImpl& impl = scaled_impl(self);
  return dims.size() == 1 && (dims.get(0) == 0 || dims.get(0) == -2) && impl.data().is_contiguous() &&
         impl.data().numel() > 0 && !impl.scale().is_zero() && !impl.shared().session->settings().counts_range;
}

}  // namespace

void sum_rows(const Plan& plan, Stack& stack) {
  const at::Tensor self = stack[stack.size() - plan.arguments.size()].toTensor();
  if (!sums_rows(self, stack)) return execute(plan, stack);
  const bool keeps_dimension = stack[stack.size() - 2].toBool();
  const ScaledTensorImpl& impl = scaled_impl(self);
  const SharedScale& shared = impl.shared();
  Session& session = *shared.session;
  const BelowAutoscale below;
  const at::Tensor total = ops::column_sum(impl.data());
  const Scale expected = grown(impl.scale(), Growth::kSum, impl.data().size(0));
  const bool keeps_fp32 = impl.data().scalar_type() == at::kFloat || impl.data().size(0) >= kFewestTerms;
  const bool spreads = shared.wide || (keeps_fp32 && widens_spread(session.settings().policy));
  const Encoded encoded = encode({.data = keeps_dimension ? total.unsqueeze(0) : total, .exponent = expected.exponent},
                                 session, {.dtype = storage_dtype(session, 1, spreads), .expected = &expected});
  session.count(plan.name, &CallCounts::wide);
  torch::jit::drop(stack, plan.arguments.size());
  stack.emplace_back(make_scaled(encoded.data, options_like(self, encoded.scale)));
}

}  // namespace plimsoll::autoscale
