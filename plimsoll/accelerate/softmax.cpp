// Softmax and its logarithm over the last dimension.
#include "plimsoll/kernels/softmax/softmax.h"

#include "plimsoll/accelerate/arguments.h"
#include "plimsoll/accelerate/operators.h"
#include "plimsoll/accelerate/pass.h"
#include "plimsoll/kernels/log_softmax/log_softmax.h"

namespace plimsoll::acceleration {
namespace {

// dim: the argument that names the dimension. least_row: a shorter one costs what a row costs.
Outcome judge_rows(const PassArguments& call, int64_t dim, int64_t least_row) {
  if (dim != -1 && dim != call.x.dim() - 1) return Outcome::kShape;
  if (call.x.dim() > 0 && call.x.size(-1) < least_row) return Outcome::kSize;
  return judge_pass(call);
}

// self, dim, half_to_float, out.
template <size_t arguments>
Outcome softmax(ops::CallStack& stack) {
  const PassArguments call = {
      .pass = Pass::kSoftmax, .x = tensor(stack, arguments, 0), .out = out_of(stack, arguments, 3)};
  if (argument(stack, arguments, 2).toBool()) return Outcome::kDtype;
  const Outcome judged = judge_rows(call, argument(stack, arguments, 1).toInt(), 64);
  return replace_by(stack, arguments, call, judged, [&](const Rows& size, void* y) {
    kernels::softmax_forward({.shape = {.batch = 1, .heads = 1, .queries = size.rows, .keys = size.cols},
                              .x = call.x.const_data_ptr(),
                              .y = y,
                              .format = format_of(call.x)});
  });
}

// The same.
template <size_t arguments>
Outcome log_softmax(ops::CallStack& stack) {
  const PassArguments call = {
      .pass = Pass::kLogSoftmax, .x = tensor(stack, arguments, 0), .out = out_of(stack, arguments, 3)};
  if (argument(stack, arguments, 2).toBool()) return Outcome::kDtype;
  const Outcome judged = judge_rows(call, argument(stack, arguments, 1).toInt(), 128);
  return replace_by(stack, arguments, call, judged, [&](const Rows& size, void* y) {
    kernels::log_softmax_forward(
        {.rows = size.rows, .cols = size.cols, .x = call.x.const_data_ptr(), .y = y, .format = format_of(call.x)});
  });
}

// grad_output, output, dim, input_dtype, out.
template <size_t arguments>
Outcome log_softmax_backward(ops::CallStack& stack) {
  const PassArguments call = {.pass = Pass::kLogSoftmaxBackward,
                              .x = tensor(stack, arguments, 1),
                              .other = &tensor(stack, arguments, 0),
                              .out = out_of(stack, arguments, 4)};
  if (argument(stack, arguments, 3).toScalarType() != call.x.scalar_type()) return Outcome::kDtype;
  const Outcome judged = judge_rows(call, argument(stack, arguments, 2).toInt(), 64);
  return replace_by(stack, arguments, call, judged, [&](const Rows& size, void* dx) {
    kernels::log_softmax_backward({.rows = size.rows,
                                   .cols = size.cols,
                                   .y = call.x.const_data_ptr(),
                                   .dy = call.other->const_data_ptr(),
                                   .dx = dx,
                                   .format = format_of(call.x)});
  });
}

}  // namespace

std::vector<Variant> softmax_variants() {
  return {{"_softmax", Operator::kSoftmax, softmax<3>},
          {"_softmax.out", Operator::kSoftmax, softmax<4>},
          {"_log_softmax", Operator::kLogSoftmax, log_softmax<3>},
          {"_log_softmax.out", Operator::kLogSoftmax, log_softmax<4>},
          {"_log_softmax_backward_data", Operator::kLogSoftmaxBackward, log_softmax_backward<4>},
          {"_log_softmax_backward_data.out", Operator::kLogSoftmaxBackward, log_softmax_backward<5>}};
}

}  // namespace plimsoll::acceleration
