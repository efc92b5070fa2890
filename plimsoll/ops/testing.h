// Helpers of the operators' tests: recipes, threads, and bounds computed from formats.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "plimsoll/format/format.h"
#include "plimsoll/kernels/gemm/gemm.h"
#include "plimsoll/ops/linear/linear_scaling.h"
#include "plimsoll/runtime/threads_testing.h"

namespace plimsoll::ops::testing {

using runtime::testing::ScopedThreads;

inline SharedRecipe shared(recipe::Recipe recipe) { return std::make_shared<const recipe::Recipe>(std::move(recipe)); }

inline std::vector<SharedRecipe> every_recipe() {
  std::vector<SharedRecipe> recipes;
  for (std::string_view name : recipe::names()) recipes.push_back(shared(recipe::by_name(name)));
  return recipes;
}

// Recipes whose operands are each near the values that they are made of.
inline std::vector<SharedRecipe> recipes_of_eight_bits() {
  std::vector<SharedRecipe> recipes = every_recipe();
  std::erase_if(recipes, [](const SharedRecipe& recipe) { return recipe->has_four_bits(); });
  return recipes;
}

// A layer of its own, with a step that records, and the same random numbers each time.
inline LinearScaling scaling_of(const SharedRecipe& recipe) {
  return {.recipe = recipe,
          .state = std::make_shared<LinearState>(),
          .step = std::make_shared<ScalingStep>(recipe),
          .seed = 7};
}

// Gaussian, so that amaxes differ between rows and blocks; held by fp32, bf16 and fp16 alike.
inline at::Tensor sample(at::IntArrayRef sizes, double deviation = 1.0) {
  return (at::randn(sizes) * deviation).to(at::kBFloat16).to(at::kHalf).to(at::kFloat);
}

inline at::Tensor leaf(const at::Tensor& x, at::ScalarType dtype = at::kFloat) {
  return x.detach().clone().to(dtype).requires_grad_(true);
}

inline double unit_roundoff(format::Format format) { return std::ldexp(1.0, -format::info(format).mantissa_bits - 1); }

// Largest error of rounding each element to the format at a scale of at most 2 amax / max_finite (E8M0 rounds up).
inline at::Tensor rounding_error(const at::Tensor& x, format::Format format) {
  const at::Tensor exact = x.to(at::kDouble).abs();
  const double amax = x.numel() == 0 ? 0 : exact.max().item<double>();
  const double scale = format::is_fp8(format) ? 2 * amax / format::max_finite(format) : 1.0;
  return exact * unit_roundoff(format) + scale * format::info(format).min_subnormal / 2;
}

struct ProductBound {
  at::Tensor a, b;  // [m, k], [n, k]
  format::Format a_format, b_format, output_format;
};
// |computed - exact| of a b^T + bias, each operand rounded once, accumulated in FP32, the result rounded once.
inline at::Tensor error_bound(const ProductBound& product, const at::Tensor& exact) {
  const at::Tensor a = product.a.to(at::kDouble).abs(), b = product.b.to(at::kDouble).abs();
  const at::Tensor da = rounding_error(product.a, product.a_format), db = rounding_error(product.b, product.b_format);
  const at::Tensor operands = at::matmul(da, (b + db).t()) + at::matmul(a, db.t());
  const double per_product = kernels::gemm_error_bound(product.a.size(1) + 2, 1.0);  // scale and bias round too
  const at::Tensor accumulation = at::matmul(a + da, (b + db).t()) * per_product + exact.abs() * 0x1p-23;
  const at::Tensor before = operands + accumulation;
  return before + (exact.abs() + before) * unit_roundoff(product.output_format) +
         format::info(product.output_format).min_subnormal / 2;
}

// NaN fails.
inline void expect_within(const at::Tensor& got, const at::Tensor& exact, const at::Tensor& bound,
                          const std::string& what) {
  ASSERT_EQ(got.sizes(), exact.sizes()) << what;
  const at::Tensor error = (got.to(at::kDouble) - exact).abs();
  const bool within = (error <= bound).all().item<bool>();
  EXPECT_TRUE(within) << what << ": largest error " << error.max().item<double>() << ", largest share of the bound "
                      << (error / bound).max().item<double>();
}

inline void expect_equal(const at::Tensor& a, const at::Tensor& b, const std::string& what) {
  ASSERT_EQ(a.defined(), b.defined()) << what;
  if (!a.defined()) return;
  ASSERT_EQ(a.scalar_type(), b.scalar_type()) << what;
  EXPECT_TRUE(at::equal(a, b)) << what;
}

}  // namespace plimsoll::ops::testing
