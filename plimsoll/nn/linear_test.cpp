#include "plimsoll/nn/linear.h"

#include <torch/nn/functional/linear.h>
#include <torch/serialize.h>

#include <sstream>

#include "plimsoll/amp/fp8_autocast.h"
#include "plimsoll/nn/held_codes.h"
#include "plimsoll/nn/testing.h"
#include "plimsoll/ops/tensor/dtype.h"
#include "plimsoll/ops/tensor/quantize.h"

namespace plimsoll::nn {
namespace {

namespace F = torch::nn::functional;
using amp::Fp8Autocast;
using testing::Tensors;

at::Tensor plain_linear(const Tensors& t) { return F::linear(t[0], t[1], t.size() > 2 ? t[2] : at::Tensor()); }

TEST(NnLinear, MatchesTorchWithoutAScope) {
  torch::manual_seed(1);
  for (const bool bias : {true, false}) {
    Linear linear(37, 21, LinearOptions{.bias = bias});
    const at::Tensor x = torch::randn({3, 5, 37}), seed = torch::randn({3, 5, 21});
    const Tensors ours = testing::run_module(
        *linear, [&](const at::Tensor& in) { return linear->forward(in); }, x, seed);
    EXPECT_EQ(ours[0].scalar_type(), at::kFloat);
    testing::expect_matches(ours, plain_linear, testing::with_parameters(x, *linear), seed);
  }
}

TEST(NnLinear, PartsJoinToOneWeight) {
  torch::manual_seed(2);
  Linear whole(16, 10);
  Linear parts(16, 10, LinearOptions{.parameters_split = {{"query", 4}, {"key", 3}, {"value", 3}}});
  EXPECT_EQ(parts->named_parameters().keys(), (std::vector<std::string>{"query_weight", "key_weight", "value_weight",
                                                                        "query_bias", "key_bias", "value_bias"}));
  {
    const at::NoGradGuard no_grad;
    whole->named_parameters()["weight"].copy_(parts->weight.joined());
    whole->named_parameters()["bias"].copy_(parts->bias.joined());
  }
  const at::Tensor x = torch::randn({7, 16});
  EXPECT_TRUE(torch::equal(parts->forward(x), whole->forward(x)));
  parts->forward(x).sum().backward();
  whole->forward(x).sum().backward();
  EXPECT_TRUE(torch::equal(parts->weight.parts()[1].grad(), whole->weight.joined().grad().slice(0, 4, 7)));
  EXPECT_THROW(Linear(16, 10, LinearOptions{.parameters_split = {{"a", 4}, {"b", 3}}}), c10::ValueError);
}

TEST(NnLinear, HeldCodesMultiplyAndTheParameterGivesUpItsMemory) {
  torch::manual_seed(3);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    Linear linear(37, 21);
    linear->to(dtype);
    const at::Tensor x = torch::randn({5, 37}).to(dtype), weight = linear->weight.joined().detach();
    const at::Tensor expected = torch::empty({5, 21}, dtype), bias = linear->bias.joined().detach().to(at::kFloat);
    ops::multiply({.a = ops::plain_values(x, ops::format_of(dtype, "test")),
                   .b = ops::quantize(weight, {.granularity = recipe::kPerRow}).tensor,
                   .epilogue = {.bias = bias.const_data_ptr<float>()}},
                  expected);
    hold_codes(*linear);
    EXPECT_EQ(linear->weight.joined().storage().nbytes(), static_cast<size_t>(x.element_size()));
    EXPECT_EQ(linear->weight.joined().sizes(), weight.sizes());
    for (int call = 0; call < 2; ++call) EXPECT_TRUE(torch::equal(linear->forward(x), expected)) << dtype;
    const auto clone = std::dynamic_pointer_cast<LinearImpl>(linear->clone());
    EXPECT_TRUE(torch::equal(clone->forward(x), expected)) << dtype;
    EXPECT_THROW(linear->forward(x.detach().requires_grad_()), c10::Error);
  }
}

// encode and decode by torch's cast, from the tensor's own amax.
at::Tensor emulate_fp8(const at::Tensor& x, at::ScalarType codes, double max_finite) {
  const at::Tensor inv_scale = torch::tensor(max_finite, at::kFloat) / x.to(at::kFloat).abs().max();
  const at::Tensor quantized = (x.to(at::kFloat) * inv_scale).to(codes).to(at::kFloat);
  return quantized.to(at::kDouble) * inv_scale.reciprocal().to(at::kDouble);
}

// |ours - a b^T - bias| where ours was accumulated in fp32 and rounded once to `unit`.
void expect_product(const at::Tensor& ours, const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias,
                    double unit) {
  const at::Tensor exact = at::matmul(a, b.t()) + bias;
  const double terms = static_cast<double>(a.size(1) + 4);
  const at::Tensor magnitude = at::matmul(a.abs(), b.abs().t()) + bias.abs();
  const at::Tensor bound = terms * 0x1p-23 * magnitude + unit * exact.abs();
  EXPECT_TRUE(((ours.to(at::kDouble) - exact).abs() <= bound).all().item<bool>());
}

TEST(NnLinear, Fp8IsTheProductOfDequantizedOperands) {
  torch::manual_seed(3);
  const at::Tensor x = torch::randn({33, 40}), seed = torch::randn({33, 24}).to(at::kBFloat16);
  for (const char* name : {"fp8", "fp8-current"}) {
    for (const ops::SaveInput save_input : {ops::SaveInput::kCodes, ops::SaveInput::kInput}) {
      Linear linear(40, 24, LinearOptions{.save_input = save_input});
      const at::Tensor weight = linear->weight.joined(), bias = linear->bias.joined();
      const Tensors ours = testing::run_module(
          *linear,
          [&](const at::Tensor& in) {
            const Fp8Autocast scope({.recipe = recipe::by_name(name)});
            return linear->forward(in);
          },
          x, seed);
      const at::Tensor x_values = emulate_fp8(x, at::kFloat8_e4m3fn, 448);
      const at::Tensor weight_values = emulate_fp8(weight.detach(), at::kFloat8_e4m3fn, 448);
      const at::Tensor grad_values = emulate_fp8(seed, at::kFloat8_e5m2, 57344);
      const at::Tensor none = torch::zeros({1}, at::kDouble);
      EXPECT_EQ(ours[0].scalar_type(), at::kBFloat16);
      expect_product(ours[0], x_values, weight_values, bias.detach().to(at::kDouble), 0x1p-8);
      expect_product(ours[1], grad_values, weight_values.t(), none, 0x1p-23);
      expect_product(ours[2], grad_values.t(), x_values.t(), none, 0x1p-23);
      const at::Tensor columns = seed.to(at::kDouble);
      expect_product(ours[3].unsqueeze(1), columns.t(), torch::ones({1, 33}, at::kDouble), none, 0x1p-23);
    }
  }
}

TEST(NnLinear, ScalingStateIsNamedBuffersThatTheScopeFills) {
  Linear linear(8, 8);
  std::vector<std::string> names = linear->named_buffers().keys();
  EXPECT_EQ(names, (std::vector<std::string>{"input_scale", "input_amax_history", "input_step", "weight_scale",
                                             "weight_amax_history", "weight_step", "grad_output_scale",
                                             "grad_output_amax_history", "grad_output_step"}));
  {
    const Fp8Autocast scope({.recipe = recipe::by_name("fp8")});
    linear->forward(torch::full({4, 8}, 3.0f)).sum();
  }
  EXPECT_FLOAT_EQ(linear->named_buffers()["input_scale"].item<float>(), 3.0f / 448);
  EXPECT_EQ(linear->named_buffers()["grad_output_scale"].item<float>(), 0);
}

TEST(NnLinear, SaveLoadCloneAndDtypeKeepTheScalingState) {
  torch::manual_seed(4);
  const at::Tensor x = torch::randn({4, 8});
  const auto run = [&](Linear& linear) {
    const at::NoGradGuard no_grad;
    const Fp8Autocast scope({.recipe = recipe::by_name("fp8")});
    return linear->forward(x * 0.1);  // with a scale of its own it would give other bits
  };
  Linear linear(8, 8);
  {
    const Fp8Autocast scope({.recipe = recipe::by_name("fp8")});
    linear->forward(x);
  }
  const at::Tensor expected = run(linear);

  std::stringstream file;
  torch::save(linear, file);
  Linear loaded(8, 8);
  torch::load(loaded, file);
  EXPECT_TRUE(torch::equal(run(loaded), expected));

  Linear copy(std::dynamic_pointer_cast<LinearImpl>(linear->clone()));
  EXPECT_TRUE(torch::equal(run(copy), expected));
  linear->named_buffers()["input_scale"].fill_(1e-4f);
  EXPECT_TRUE(torch::equal(run(copy), expected));

  copy->to(torch::kBFloat16);
  EXPECT_EQ(copy->named_parameters()["weight"].scalar_type(), at::kBFloat16);
  EXPECT_EQ(copy->named_buffers()["input_scale"].scalar_type(), at::kFloat);
  EXPECT_EQ(copy->named_buffers()["input_step"].scalar_type(), at::kLong);
}

TEST(NnLinear, LaterMicrobatchesUseTheFirstOnesWeight) {
  torch::manual_seed(5);
  for (const bool split : {false, true}) {
    Linear linear(8, 6,
                  LinearOptions{.parameters_split = split ? std::vector<ParameterPart>{{"a", 2}, {"b", 4}}
                                                          : std::vector<ParameterPart>{}});
    const at::Tensor x = torch::randn({4, 8});
    const Fp8Autocast scope({.recipe = recipe::by_name("fp8-current")});
    EXPECT_THROW(linear->forward(x, false), c10::Error);
    const at::Tensor first = linear->forward(x, true);
    EXPECT_TRUE(torch::equal(linear->forward(x, false), first));
    EXPECT_TRUE(torch::equal(linear->forward(x), first));
    {
      const at::NoGradGuard no_grad;
      at::Tensor(linear->weight.parts().back()).mul_(2);
    }
    EXPECT_THROW(linear->forward(x, false), c10::Error);
    EXPECT_FALSE(torch::equal(linear->forward(x, true), first));
  }
}

TEST(NnLinear, HighPrecisionLayersHaveNoCodesAndNoBuffers) {
  torch::manual_seed(6);
  Linear linear(8, 6, LinearOptions{.bias = false, .high_precision = true});
  EXPECT_TRUE(linear->named_buffers().is_empty());
  const at::Tensor x = torch::randn({4, 8});
  at::Tensor in_fp8, in_bf16;
  {
    const Fp8Autocast scope({.recipe = recipe::by_name("fp8")});
    in_fp8 = linear->forward(x);
  }
  {
    const Fp8Autocast scope({.recipe = recipe::by_name("bf16")});
    in_bf16 = linear->forward(x);
  }
  EXPECT_TRUE(torch::equal(in_fp8, in_bf16));
}

TEST(NnLinear, EmptyBatchesAndFrozenWeightsWork) {
  Linear linear(8, 6);
  EXPECT_EQ(linear->forward(torch::randn({0, 8})).sizes(), (std::vector<int64_t>{0, 6}));
  for (at::Tensor& parameter : linear->parameters()) parameter.requires_grad_(false);
  const at::Tensor x = torch::randn({2, 8}).requires_grad_(true);
  linear->forward(x).sum().backward();
  EXPECT_TRUE(x.grad().defined());
  EXPECT_FALSE(linear->named_parameters()["weight"].grad().defined());
}

}  // namespace
}  // namespace plimsoll::nn
