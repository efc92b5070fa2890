#include "plimsoll/ops/linear/error_feedback.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linalg_cholesky_ex.h>
#include <ATen/ops/linalg_solve_triangular.h>
#include <ATen/ops/ones.h>

#include <tuple>

#include "plimsoll/kernels/quantize/feedback_fp8.h"
#include "plimsoll/kernels/quantize_fp4/feedback_fp4.h"
#include "plimsoll/ops/linear/linear.h"

namespace plimsoll::ops {
namespace {

constexpr double kDamping = 0.01;  // of the mean of the diagonal, as GPTQ has it

// The libraries below sum in another order with other numbers of threads.
class OneThread {
 public:
  OneThread() : before_(at::get_num_threads()) { at::set_num_threads(1); }
  ~OneThread() { at::set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

void check_feedback(const at::Tensor& feedback, int64_t cols) {
  TORCH_CHECK(feedback.sizes() == at::IntArrayRef({cols, cols}) && feedback.scalar_type() == at::kDouble,
              "error feedback: expected fp64 feedback [", cols, ", ", cols, "], got ", feedback.sizes());
}

// A copy of the weight, which a kernel may change.
at::Tensor values_to_round(const CodeSource& source) {
  return source.weight.to(at::kDouble, /*non_blocking=*/false, /*copy=*/true).contiguous();
}

}  // namespace

at::Tensor input_squares(const at::Tensor& x) {
  const at::Tensor columns = x.reshape({-1, x.size(-1)}).to(at::kFloat).t().contiguous();
  return linear(columns, columns, {}, {}).to(at::kDouble);
}

at::Tensor error_feedback(const at::Tensor& squares) {
  TORCH_CHECK(squares.dim() == 2 && squares.size(0) == squares.size(1) && squares.scalar_type() == at::kDouble,
              "error feedback: expected fp64 squares [in, in], got ", squares.sizes());
  TORCH_CHECK(squares.isfinite().all().item<bool>(), "error feedback: expected finite squares, got NaN or Inf");
  const OneThread one_thread;
  const at::Tensor identity = at::eye(squares.size(0), squares.options());
  const double mean = squares.diagonal().mean().item<double>();
  if (!(mean > 0)) return identity;
  // With the order of rows and columns reversed, R R^T in place of L L^T; the inverse is R^-T R^-1.
  const at::Tensor damped = squares + identity * (kDamping * mean);
  const auto [lower, failed] = at::linalg_cholesky_ex(damped.flip({0, 1}));
  TORCH_CHECK(failed.item<int>() == 0, "error feedback: expected squares of inputs, got a matrix that is none");
  return at::linalg_solve_triangular(lower.flip({0, 1}), identity, /*upper=*/true).contiguous();
}

Fp4Codes fp4_codes_with_feedback(const CodeSource& source, format::Fp4Scaling scaling, float amax,
                                 const at::Tensor& feedback) {
  const int64_t rows = source.weight.size(0), cols = source.weight.size(1), block = format::fp4_block(scaling);
  TORCH_CHECK(cols % block == 0, "error feedback: expected a multiple of ", block, " columns, got ", cols);
  check_feedback(feedback, cols);
  const at::Tensor values = values_to_round(source), factors = feedback.contiguous();
  Fp4Codes result{.codes = at::empty({rows, cols / 2}, at::kByte),
                  .scale = at::empty({rows, cols / block}, at::kByte),
                  .tensor_scale = {},
                  .cols = cols};
  if (format::is_nvfp4(scaling)) {
    result.tensor_scale = at::full({1}, 1.0f / format::Nvfp4::encode_scale(amax, scaling), at::kFloat);
  }
  kernels::feedback_fp4({.x = values.mutable_data_ptr<double>(),
                         .rows = rows,
                         .cols = cols,
                         .feedback = factors.const_data_ptr<double>(),
                         .scaling = scaling,
                         .tensor_amax = amax,
                         .codes = result.codes.mutable_data_ptr<uint8_t>(),
                         .scale = result.scale.mutable_data_ptr<uint8_t>()});
  return result;
}

ScaledTensor fp8_codes_with_feedback(const CodeSource& source, recipe::Granularity granularity,
                                     const at::Tensor& feedback) {
  const int64_t rows = source.weight.size(0), cols = source.weight.size(1);
  check_feedback(feedback, cols);
  const at::Tensor values = values_to_round(source), factors = feedback.contiguous();
  ScaledTensor result{.data = at::empty({rows, cols}, at::kByte),
                      .scale = at::ones(scale_shape(granularity, rows, cols), at::kFloat),
                      .format = format::Format::kE4m3,
                      .granularity = granularity};
  kernels::feedback_fp8({.x = values.mutable_data_ptr<double>(),
                         .rows = rows,
                         .cols = cols,
                         .feedback = factors.const_data_ptr<double>(),
                         .block_rows = granularity.block_rows,
                         .block_cols = granularity.block_cols,
                         .codes = result.data.mutable_data_ptr<uint8_t>(),
                         .scale = result.scale.mutable_data_ptr<float>()});
  return result;
}

}  // namespace plimsoll::ops
