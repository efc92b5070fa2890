// Arguments of operators that read each element once, and whether our kernels take them.
#pragma once

#include <cstdint>
#include <utility>

#include "plimsoll/accelerate/arguments.h"
#include "plimsoll/accelerate/rules.h"
#include "plimsoll/format/format.h"

namespace plimsoll::acceleration {

// `out` is the caller's tensor, or nullptr; it may be x itself where there is no second operand. other: that one, of x's
// sizes, or nullptr.
struct PassArguments {
  Pass pass;
  const at::Tensor& x;
  const at::Tensor* other = nullptr;
  const at::Tensor* out = nullptr;
};

Outcome judge_pass(const PassArguments& call);

// The caller's tensor, or a new one like x.
at::Tensor result_of(const PassArguments& call);

// The last argument, where a call has more of them than the variant that returns a new tensor.
const at::Tensor* out_of(const ops::CallStack& stack, size_t arguments, size_t functional);

format::Format format_of(const at::Tensor& x);

// The whole tensor as one row after another, because threads share rows.
struct Rows {
  int64_t rows, cols;
};
Rows rows_of(const at::Tensor& x);

// Puts the result of kernel(rows, its memory) in the place of the arguments, if the call was judged to be replaced.
template <class Kernel>
Outcome replace_by(ops::CallStack& stack, size_t arguments, const PassArguments& call, Outcome judged, Kernel kernel) {
  if (judged != Outcome::kReplaced) return judged;
  at::Tensor result = result_of(call);
  kernel(rows_of(call.x), result.mutable_data_ptr());
  replace_arguments(stack, arguments, std::move(result));
  return Outcome::kReplaced;
}

}  // namespace plimsoll::acceleration
