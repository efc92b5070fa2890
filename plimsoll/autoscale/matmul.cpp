#include "plimsoll/autoscale/matmul.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "plimsoll/autoscale/block_codes.h"
#include "plimsoll/autoscale/codes.h"
#include "plimsoll/autoscale/execute.h"
#include "plimsoll/autoscale/operands.h"
#include "plimsoll/autoscale/storage.h"
#include "plimsoll/kernels/gemm/gemm.h"
#include "plimsoll/ops/tensor/audited_product.h"
#include "plimsoll/ops/tensor/dtype.h"

namespace plimsoll::autoscale {
namespace {

using torch::jit::Stack;

// [batch, rows, columns] of which rows or columns lie one after the other, as the kernel needs it.
at::Tensor readable(const at::Tensor& matrix) {
  const at::Tensor x = matrix.dim() == 2 ? matrix.unsqueeze(0) : matrix;
  const auto leads = [&](int64_t inner, int64_t outer) {
    return x.stride(inner) == 1 && (x.size(outer) == 1 || x.stride(outer) >= std::max<int64_t>(1, x.size(inner)));
  };
  return leads(2, 1) || leads(1, 2) ? x : x.contiguous();
}

kernels::GemmOperand gemm_operand(const at::Tensor& x, int64_t row_dim, int64_t k_dim) {
  return {.data = x.const_data_ptr(),
          .format = operand_format(x.scalar_type()),
          .row_stride = x.stride(row_dim),
          .k_stride = x.stride(k_dim)};
}

struct Product {
  at::Tensor a, b;  // [batch, m, k], [batch, k, n]
  // Codes that are read in their place, of a batch of one.
  const std::array<BlockCodes, 2>& codes;
  float alpha = 1;
  const float* bias = nullptr;  // [n]
};

// Returns the amax before rounding.
float multiply(const Product& product, at::Tensor& output) {
  const at::Tensor a = readable(product.a), b = readable(product.b);
  const int64_t n = b.size(2);
  float amax = 0;
  kernels::GemmOperand left = gemm_operand(a, 1, 2), right = gemm_operand(b, 2, 1);
  int64_t k = a.size(2);
  for (const size_t i : {size_t{0}, size_t{1}}) {
    if (!product.codes.at(i).defined()) continue;
    const ops::GemmMatrix matrix = product.codes.at(i).matrix();
    (i == 0 ? left : right) = matrix.operand;
    k = matrix.k;  // of both: rotated ones are longer
  }
  const format::Format format = ops::format_of(output.scalar_type(), "autoscale");
  ops::audit_product({.op = a.size(0) == 1 ? "gemm" : "gemm batched",
                      .a = left,
                      .b = right,
                      .k = a.size(2),
                      .output = format,
                      .operations = 2.0 * static_cast<double>(output.numel() * a.size(2)),
                      .decided = "autoscale",
                      .autoscaled = true});
  const kernels::Gemm first = {.a = left,
                               .b = right,
                               .m = a.size(1),
                               .n = n,
                               .k = k,
                               .output = output.mutable_data_ptr(),
                               .output_format = format,
                               .output_stride = n,
                               .epilogue = {.alpha = product.alpha, .bias = product.bias, .amax = &amax}};
  if (a.size(0) == 1) {
    kernels::gemm(first);
  } else {
    kernels::gemm_batched({.first = first,
                           .batch = a.size(0),
                           .a_step = a.stride(0),
                           .b_step = b.stride(0),
                           .output_step = output.stride(0)});
  }
  return amax;
}

// The factors of self and of the product.
struct Factors {
  double beta = 0, alpha = 1;
};

Factors factors_of(const Plan& plan, const Stack& stack) {
  if (plan.arguments.size() < 5) return {};
  return {.beta = stack[stack.size() - 2].toScalar().to<double>(), .alpha = stack.back().toScalar().to<double>()};
}

struct MatmulOperands {
  const Operand &a, &b;
  const Operand* added = nullptr;  // of addmm and baddbmm
  std::array<BlockCodes, 2> codes = {};

  bool has_bias() const { return added != nullptr && added->data.dim() == 1; }
};

const SharedScale* shared_of(const Operand& operand) {
  return is_scaled(operand.tensor) ? &scaled_impl(operand.tensor).shared() : nullptr;
}

bool is_parameter(const Operand& operand) { return shared_of(operand) != nullptr && shared_of(operand)->parameter; }
bool is_gradient(const Operand& operand) { return shared_of(operand) != nullptr && shared_of(operand)->gradient; }

// The factor of Method::kUnit: 1 over the root of the terms. A layer's input gradient has the factor of its output,
// as it has to where other paths lead to the same input.
double unit_factor(const MatmulOperands& operands) {
  const at::Tensor &a = operands.a.data, &b = operands.b.data;
  int64_t terms = a.size(-1);
  if (is_gradient(operands.a) && is_parameter(operands.b)) terms = b.size(-1);
  if (is_gradient(operands.b) && is_parameter(operands.a)) terms = a.size(-2);
  return 1 / std::sqrt(static_cast<double>(std::max<int64_t>(terms, 1)));
}

// Measures gradients for Method::kGradientRms.
void measure_gradients(std::vector<Operand>& operands, Session& session) {
  for (Operand& operand : operands) {
    if (!is_gradient(operand) || operand.scale.is_zero()) continue;
    const Encoded encoded = encode({.data = operand.data, .exponent = operand.scale.exponent}, session,
                                   {.dtype = operand.data.scalar_type(), .origin = Origin::kEntering});
    operand.data = encoded.data;
    operand.scale = encoded.scale;
  }
}

// The scale of the sum, as it follows from the operands'.
Scale expected_product(const MatmulOperands& operands, const Factors& factors, const Policy& policy) {
  Scale expected = sum_over(product(operands.a.scale, operands.b.scale), operands.a.data.size(-1));
  if (factors.alpha != 1) expected = product(expected, number_scale(policy, factors.alpha));
  if (operands.has_bias() && factors.beta != 0) expected = sum(expected, operands.added->scale);
  return settled_by(policy, expected, true);
}

// Into output [batch, m, n]; returns the amax before rounding. scale: that of the output.
float multiply_at(const Scale& scale, const MatmulOperands& operands, const Factors& factors, at::Tensor& output) {
  at::Tensor bias;
  if (operands.has_bias() && factors.beta != 0) {
    bias = times_power(operands.added->data, shift_to(operands.added->scale, scale), at::kFloat).contiguous();
    if (factors.beta != 1) bias = bias * factors.beta;
  }
  const Scale terms = product(operands.a.scale, operands.b.scale);
  return multiply({.a = operands.a.data,
                   .b = operands.b.data,
                   .codes = operands.codes,
                   .alpha = static_cast<float>(factors.alpha * shift(terms, scale.exponent)),
                   .bias = bias.defined() ? bias.const_data_ptr<float>() : nullptr},
                  output);
}

// The product's amax bounds it. Under Method::kAutoscale a product that dtype does not hold is made again at a larger
// exponent.
Encoded scaled_product(const MatmulOperands& operands, const Factors& factors, Session& session, at::ScalarType dtype) {
  const Policy& policy = session.settings().policy;
  const bool looks =
      policy.method == Method::kAmax || policy.method == Method::kDelayed || session.settings().counts_range;
  Scale expected = expected_product(operands, factors, policy);
  std::vector<int64_t> sizes = operands.a.data.sizes().vec();
  sizes.back() = operands.b.data.size(-1);
  at::Tensor output = at::empty(sizes, operands.a.data.options().dtype(looks ? at::kFloat : dtype));
  at::Tensor rows = output.dim() == 2 ? output.unsqueeze(0) : output;
  while (true) {
    const float amax = multiply_at(expected, operands, factors, rows);
    const double bound = amax > 0 ? std::log2(static_cast<double>(amax)) : -kHeadroom;
    expected.bound = std::isfinite(amax) ? bound : kUnbounded;
    expected.remainder = std::min(expected.remainder, bound);  // no rms is above the amax: what was foreseen may drift
    if (looks)
      return encode({.data = output, .exponent = expected.exponent}, session, {.dtype = dtype, .expected = &expected});
    const bool grows = policy.method == Method::kAutoscale && std::isfinite(amax);
    if (fits(expected.bound, dtype) || !grows) return {.data = output, .scale = expected};
    expected = with_exponent(expected, expected.exponent + static_cast<int32_t>(std::ceil(bound - kHeadroom)));
  }
}

ProductFormat product_format(const Operand& operand, const Settings& settings) {
  return is_gradient(operand) ? settings.product_gradients : settings.product_values;
}

// An operand of mm or addmm, [rows, sum], with the role that a recipe has for it.
BlockOperand block_operand(const Operand& operand, const at::Tensor& matrix, const Settings& settings) {
  const recipe::Role role = is_gradient(operand)    ? recipe::Role::kGradOutput
                            : is_parameter(operand) ? recipe::Role::kWeight
                                                    : recipe::Role::kInput;
  const ProductFormat format = operand.scale.is_zero() ? ProductFormat::kData : product_format(operand, settings);
  return {.matrix = matrix, .format = format, .role = role};
}

// Codes with one scale, in the place of data.
void encode_whole(Operand& operand, ProductFormat format) {
  if (format == ProductFormat::kE4m3) encode_operand(operand, at::kFloat8_e4m3fn);
  if (format == ProductFormat::kE5m2) encode_operand(operand, at::kFloat8_e5m2);
}

// Whether a product reads codes, which are beside the data if their scales are of blocks.
bool encode_operands(std::vector<Operand>& all, MatmulOperands& matrices, const Settings& settings) {
  if (settings.product_values == ProductFormat::kData) return false;
  const Operand &a = matrices.a, &b = matrices.b;
  matrices.codes = encode_blocks({block_operand(a, a.data, settings), block_operand(b, b.data.t(), settings)});
  for (size_t i = all.size() - 2; i < all.size(); ++i) encode_whole(all[i], product_format(all[i], settings));
  return true;
}

void run_matmul(int64_t dims, const Plan& plan, Stack& stack) {
  Operands operands(plan, stack);
  if (!operands.strided()) return execute(plan, stack);
  const BelowAutoscale below;
  operands.enter();
  Session& session = *operands.session();
  std::vector<Operand>& all = operands.all();
  if (session.settings().policy.method == Method::kGradientRms) measure_gradients(all, session);
  MatmulOperands matrices = {
      .a = all[all.size() - 2], .b = all.back(), .added = all.size() == 3 ? &all.front() : nullptr};
  TORCH_CHECK(matrices.a.data.dim() == dims && matrices.b.data.dim() == dims &&
                  matrices.a.data.size(-1) == matrices.b.data.size(-2),
              plan.name, ": expected matrices [m, k] and [k, n], got ", matrices.a.data.sizes(), " and ",
              matrices.b.data.sizes());
  const at::ScalarType dtype = operands.result_dtype(dims);
  const bool codes = dims == 2 && !operands.wide() && encode_operands(all, matrices, session.settings());
  Factors factors = factors_of(plan, stack);
  if (session.settings().policy.method == Method::kUnit) factors.alpha *= unit_factor(matrices);
  Encoded result = scaled_product(matrices, factors, session, dtype);
  if (matrices.added != nullptr && !matrices.has_bias() && factors.beta != 0) {
    const at::Tensor values =
        times_power(matrices.added->data, shift_to(matrices.added->scale, result.scale), at::kFloat);
    const at::Tensor total = result.data.to(at::kFloat).add(values, factors.beta);
    result = encode({.data = total, .exponent = result.scale.exponent}, session, {.dtype = dtype});
  }
  session.count(plan.name, codes ? &CallCounts::codes : &CallCounts::storage);
  torch::jit::drop(stack, plan.arguments.size());
  if (plan.in_place) {
    assign(all.front().tensor, {.data = result.data, .exponent = result.scale.exponent}, &result.scale);
    stack.emplace_back(all.front().tensor);
    return;
  }
  stack.emplace_back(make_scaled(result.data, operands.options(result.scale)));
}

}  // namespace

void matmul(const Plan& plan, Stack& stack) { run_matmul(2, plan, stack); }
void batched_matmul(const Plan& plan, Stack& stack) { run_matmul(3, plan, stack); }

}  // namespace plimsoll::autoscale
