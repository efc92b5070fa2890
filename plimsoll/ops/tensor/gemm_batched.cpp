#include "plimsoll/ops/tensor/gemm_batched.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>

#include "plimsoll/kernels/gemm/gemm.h"
#include "plimsoll/ops/tensor/dtype.h"
#include "plimsoll/ops/tensor/traffic.h"
#include "plimsoll/watch/profile.h"

namespace plimsoll::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// A view whose rows or columns lie one after the other, as the kernel needs it.
at::Tensor readable(const at::Tensor& x) { return x.stride(1) == 1 || x.stride(2) == 1 ? x : x.contiguous(); }

// [batch, rows, k], of which the strides need not fit where a size is 1.
kernels::GemmOperand operand(const at::Tensor& x, int64_t row_dim, int64_t k_dim, format::Format format) {
  return {.data = x.const_data_ptr(), .format = format, .row_stride = x.stride(row_dim), .k_stride = x.stride(k_dim)};
}

at::Tensor products(const at::Tensor& a_any, const at::Tensor& b_any) {
  const at::Tensor a = readable(a_any), b = readable(b_any);
  at::Tensor output = at::empty({a.size(0), a.size(1), b.size(2)}, a.options());
  const format::Format format = format_of(a.scalar_type(), "batched_gemm");
  const kernels::BatchedGemm args = {.first = {.a = operand(a, 1, 2, format),
                                               .b = operand(b, 2, 1, format),
                                               .m = a.size(1),
                                               .n = b.size(2),
                                               .k = a.size(2),
                                               .output = output.mutable_data_ptr(),
                                               .output_format = format,
                                               .output_stride = b.size(2)},
                                     .batch = a.size(0),
                                     .a_step = a.stride(0),
                                     .b_step = b.stride(0),
                                     .output_step = output.stride(0)};
  const watch::Span span("gemm batched", {.operations = 2.0 * static_cast<double>(output.numel() * args.first.k),
                                          .bytes = traffic(a, b, output)});
  kernels::gemm_batched(args);
  return output;
}

class BatchedGemmFunction : public torch::autograd::Function<BatchedGemmFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& a, const at::Tensor& b) {
    context->save_for_backward({a, b});
    return products(a, b);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    TORCH_CHECK(!at::GradMode::is_enabled(),
                "batched_gemm: expected a backward pass without create_graph, got one with it");
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& grad = gradients[0];
    variable_list result(2);
    if (!grad.defined()) return result;
    if (context->needs_input_grad(0)) result[0] = products(grad, saved[1].transpose(1, 2));
    if (context->needs_input_grad(1)) result[1] = products(saved[0].transpose(1, 2), grad);
    return result;
  }
};

}  // namespace

at::Tensor batched_gemm(const at::Tensor& a, const at::Tensor& b) {
  check_values(a, "batched_gemm", "a");
  check_values(b, "batched_gemm", "b");
  TORCH_CHECK(a.dim() == 3 && b.dim() == 3 && a.size(0) == b.size(0) && a.size(2) == b.size(1),
              "batched_gemm: expected [batch, m, k] and [batch, k, n], got ", a.sizes(), " and ", b.sizes());
  TORCH_CHECK(a.scalar_type() == b.scalar_type(), "batched_gemm: expected both of one dtype, got ", a.scalar_type(),
              " and ", b.scalar_type());
  return BatchedGemmFunction::apply(a, b);
}

}  // namespace plimsoll::ops
