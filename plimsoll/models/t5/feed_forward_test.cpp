#include "plimsoll/models/t5/feed_forward.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/where.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "plimsoll/models/t5/testing.h"
#include "plimsoll/ops/activation/activation.h"

namespace plimsoll::models {
namespace {

// Every finite FP16 number of at least this magnitude.
at::Tensor halves_from(double least) {
  const at::Tensor all = at::arange(0, 1 << 16, at::kInt).to(at::kShort).view(at::kHalf);
  return all.masked_select(all.isfinite().logical_and(all.abs().ge(least)));
}

at::Tensor gradient(const at::Tensor& y, const at::Tensor& x) {
  return torch::autograd::grad({y}, {x}, {at::ones_like(y)}).front();
}

TEST(T5GeluGuard, FromTenOnGeluAndItsGradientAreThoseOfRelu) {
  const at::Tensor x = halves_from(10).requires_grad_();
  ASSERT_GT(x.numel(), 2 * 12 * 1024);
  const at::Tensor gelu = ops::activation(x, kernels::Activation::kGelu), relu = at::relu(x);
  EXPECT_TRUE(at::equal(gelu, relu));
  EXPECT_TRUE(at::equal(gradient(gelu, x), gradient(relu, x)));
}

TEST(T5GeluGuard, IsTheThresholdBeyondWhichGeluIsRelu) {
  const at::NoGradGuard no_grad;
  // One channel throughout: the output is the activation of the input, times the input's own gate of one.
  T5DenseReluDense layer(T5Config{.d_model = 1, .d_ff = 1, .feed_forward = kernels::Activation::kGelu});
  for (at::Tensor& parameter : layer->parameters()) parameter.set_data(at::ones({1, 1}, at::kHalf));
  layer->eval();
  const at::Tensor x = at::arange(-64, 65, at::kHalf).div(16).view({1, -1, 1});
  const at::Tensor gelu = ops::activation(x, kernels::Activation::kGelu);
  for (const double guard : {0.5, 2.0, 3.0, 39.0}) {
    const at::Tensor expected = at::where(x.abs().gt(guard), at::relu(x), gelu);
    EXPECT_TRUE(at::equal(layer->forward(x, T5Fixes{.gelu_guard = guard}), expected)) << guard;
    EXPECT_EQ(at::equal(expected, gelu), guard == 39);
  }
}

}  // namespace
}  // namespace plimsoll::models
