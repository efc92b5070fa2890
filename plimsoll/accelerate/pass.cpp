#include "plimsoll/accelerate/pass.h"

#include <ATen/ops/empty_like.h>

#include "plimsoll/ops/tensor/dtype.h"

namespace plimsoll::acceleration {
namespace {

bool is_apart_or_in_place(const PassArguments& call) {
  if (call.other == nullptr && call.out->is_same(call.x)) return true;
  return !call.out->is_alias_of(call.x) && (call.other == nullptr || !call.out->is_alias_of(*call.other));
}

}  // namespace

Outcome judge_pass(const PassArguments& call) {
  const auto& [pass, x, other, out] = call;
  if (!has_values(x) || (other != nullptr && !of_one_kind(x, *other)) || (out != nullptr && !of_one_kind(x, *out)))
    return Outcome::kDtype;
  if (x.dim() == 0 || x.numel() == 0 || (other != nullptr && !other->sizes().equals(x.sizes()))) return Outcome::kShape;
  if (!x.is_contiguous() || (other != nullptr && !other->is_contiguous())) return Outcome::kStrides;
  if (out != nullptr && (!is_writable(*out, x.sizes()) || !is_apart_or_in_place(call))) return Outcome::kStrides;
  return choose({pass, format_of(x), x.numel()}, processor(runtime::isa()));
}

at::Tensor result_of(const PassArguments& call) { return call.out != nullptr ? *call.out : at::empty_like(call.x); }

const at::Tensor* out_of(const ops::CallStack& stack, size_t arguments, size_t functional) {
  return arguments > functional ? &tensor(stack, arguments, functional) : nullptr;
}

format::Format format_of(const at::Tensor& x) { return ops::format_of(x.scalar_type(), "accelerate"); }

Rows rows_of(const at::Tensor& x) { return {x.numel() / x.size(-1), x.size(-1)}; }

}  // namespace plimsoll::acceleration
