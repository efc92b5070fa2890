#include "plimsoll/amp/custom_function.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace plimsoll::amp {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

thread_local at::ScalarType forward_dtype, backward_dtype;

struct Product : torch::autograd::Function<Product> {
  static at::Tensor forward(AutogradContext* context, at::Tensor a, at::Tensor b,
                            std::optional<at::ScalarType> cast_inputs) {
    const CustomForward scope(*context, at::kCPU, cast_inputs);
    a = scope.cast(a), b = scope.cast(b);
    context->save_for_backward({a, b});
    const at::Tensor output = a.mm(b);
    forward_dtype = output.scalar_type();
    return output;
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    const Autocast scope = autocast_of_forward(*context);
    const variable_list saved = context->get_saved_variables();
    const at::Tensor grad_a = grads[0].mm(saved[1].t()), grad_b = saved[0].t().mm(grads[0]);
    backward_dtype = grad_b.scalar_type();
    return {grad_a, grad_b, {}};
  }
};

struct Forgetful : torch::autograd::Function<Forgetful> {
  static at::Tensor forward(AutogradContext*, const at::Tensor& a) { return a * 2; }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    const Autocast scope = autocast_of_forward(*context);
    return grads;
  }
};

at::Tensor matrix() { return at::rand({3, 3}).requires_grad_(true); }

TEST(CustomFunction, BackwardRunsUnderTheAutocastOfItsForward) {
  const at::Tensor a = matrix(), b = matrix();
  at::Tensor output;
  {
    const Autocast scope(at::kCPU, at::kHalf);
    output = Product::apply(a, b, std::nullopt);
  }
  EXPECT_EQ(forward_dtype, at::kHalf);
  output.sum().backward();
  EXPECT_EQ(backward_dtype, at::kHalf);
  EXPECT_EQ(a.grad().scalar_type(), at::kFloat);
  output = Product::apply(a, b, std::nullopt);
  EXPECT_EQ(forward_dtype, at::kFloat);
  const Autocast scope(at::kCPU, at::kHalf);
  output.sum().backward();
  EXPECT_EQ(backward_dtype, at::kFloat);
}

TEST(CustomFunction, CastInputsSwitchesAutocastOffInside) {
  const at::Tensor a = matrix(), b = matrix();
  at::Tensor output;
  {
    const Autocast scope(at::kCPU, at::kBFloat16);
    output = Product::apply(a.to(at::kHalf), b, at::kFloat);
  }
  EXPECT_EQ(forward_dtype, at::kFloat);
  output.sum().backward();
  EXPECT_EQ(backward_dtype, at::kFloat);
  Product::apply(a.to(at::kHalf), b.to(at::kHalf), at::kFloat);
  EXPECT_EQ(forward_dtype, at::kHalf) << "outside autocast nothing is cast";
}

TEST(CustomFunction, AWeightKeepsItsGradientOutsideTheFunction) {
  const at::Tensor x = at::ones({3, 3}), weight = matrix();
  at::Tensor loss;
  {
    const Autocast scope(at::kCPU, at::kHalf);
    Product::apply(x, weight, std::nullopt);
    loss = at::mm(x, weight).sum();
  }
  loss.backward();
  ASSERT_TRUE(weight.grad().defined());
  EXPECT_TRUE(at::equal(weight.grad(), at::full({3, 3}, 3.0f)));
}

TEST(CustomFunction, AForwardWithoutScopeIsNamed) {
  const at::Tensor output = Forgetful::apply(matrix());
  EXPECT_THAT([&] { output.sum().backward(); },
              testing::ThrowsMessage<c10::Error>(testing::HasSubstr("expected a CustomForward in the forward pass")));
}

}  // namespace
}  // namespace plimsoll::amp
