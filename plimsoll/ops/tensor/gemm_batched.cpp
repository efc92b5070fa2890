#include "plimsoll/ops/tensor/gemm_batched.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>

#include "plimsoll/kernels/gemm/gemm.h"
#include "plimsoll/ops/tensor/audited_product.h"
#include "plimsoll/ops/tensor/dtype.h"
#include "plimsoll/ops/tensor/traffic.h"
#include "plimsoll/watch/profile.h"

namespace plimsoll::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor readable(const at::Tensor& x) { return is_readable(x) ? x : x.contiguous(); }

at::Tensor products(const at::Tensor& a, const at::Tensor& b) {
  at::Tensor output = at::empty({a.size(0), a.size(1), b.size(2)}, a.options());
  multiply_as_stored({readable(a), readable(b), output});
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

bool is_readable(const at::Tensor& x) {
  return x.stride(-1) == 1 || x.stride(-2) == 1 || x.size(-1) == 1 || x.size(-2) == 1;
}

kernels::GemmOperand operand_as_stored(const at::Tensor& x, OperandDims dims, format::Format format) {
  const int64_t row_stride = x.stride(dims.row), k_stride = x.stride(dims.k);
  // Strides do not matter where a size is 1, and torch leaves any there.
  const bool k_is_dense = x.size(dims.k) == 1 || k_stride == 1;
  return {.data = x.const_data_ptr(),
          .format = format,
          .row_stride = k_is_dense || x.size(dims.row) > 1 ? row_stride : 1,
          .k_stride = k_is_dense ? 1 : k_stride};
}

void multiply_as_stored(const StoredProduct& product) {
  const auto& [a, b, output, alpha, bias, accumulate] = product;
  const format::Format format = format_of(a.scalar_type(), "gemm");
  const bool is_batch = a.dim() == 3;
  const kernels::BatchedGemm args = {
      .first = {.a = operand_as_stored(a, {.row = -2, .k = -1}, format),
                .b = operand_as_stored(b, {.row = -1, .k = -2}, format),
                .m = a.size(-2),
                .n = b.size(-1),
                .k = a.size(-1),
                .output = output.mutable_data_ptr(),
                .output_format = format,
                .output_stride = b.size(-1),
                .epilogue = {.alpha = alpha,
                             .bias = bias.defined() ? bias.const_data_ptr<float>() : nullptr,
                             .accumulate = accumulate}},
      .batch = is_batch ? a.size(0) : 1,
      .a_step = is_batch ? a.stride(0) : 0,
      .b_step = is_batch ? b.stride(0) : 0,
      .output_step = is_batch ? output.stride(0) : 0};
  const char* const name = is_batch ? "gemm batched" : "gemm";
  const double operations = 2.0 * static_cast<double>(output.numel() * args.first.k);
  const watch::Span span(name, {.operations = operations, .bytes = traffic(a, b, output)});
  audit_product({.op = name,
                 .a = args.first.a,
                 .b = args.first.b,
                 .k = args.first.k,
                 .output = format,
                 .operations = operations});
  if (is_batch) {
    kernels::gemm_batched(args);
  } else {
    kernels::gemm(args.first);
  }
}

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
