// The operators by their names in torch's dispatcher, and the differentiable ones against torch in double.
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/autograd.h>

#include "plimsoll/ops/activation/activation.h"
#include "plimsoll/ops/activation/activation_composed.h"
#include "plimsoll/ops/norm/norm.h"
#include "plimsoll/ops/softmax/softmax.h"
#include "plimsoll/ops/testing.h"

namespace plimsoll::ops {
namespace {

using kernels::Activation;
using kernels::NormKind;
using testing::leaf;
using testing::sample;
using Stack = std::vector<c10::IValue>;

Stack call(const char* name, Stack arguments) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow((std::string("plimsoll::") + name).c_str(), "");
  // Trailing defaults, as Python fills them in.
  const auto& schema = op.schema().arguments();
  for (size_t i = arguments.size(); i < schema.size(); ++i) arguments.push_back(*schema[i].default_value());
  op.callBoxed(arguments);
  return arguments;
}

Stack on_meta(Stack arguments) {
  for (c10::IValue& value : arguments) {
    if (value.isTensor()) value = value.toTensor().to(at::kMeta);
  }
  return arguments;
}

void expect_meta_agrees(const char* name, const Stack& arguments) {
  const Stack real = call(name, arguments), meta = call(name, on_meta(arguments));
  ASSERT_EQ(real.size(), meta.size()) << name;
  for (size_t i = 0; i < real.size(); ++i) {
    const at::Tensor expected = real[i].toTensor(), got = meta[i].toTensor();
    EXPECT_EQ(got.sizes(), expected.sizes()) << name << " result " << i;
    EXPECT_EQ(got.strides(), expected.strides()) << name << " result " << i;
    EXPECT_EQ(got.scalar_type(), expected.scalar_type()) << name << " result " << i;
  }
}

TEST(Library, MetaKernelsAgreeWithTheCpu) {
  at::manual_seed(1);
  const at::Tensor x = sample({4, 6}), y = sample({5, 6}), vector = sample({6}), codes = x.to(at::kByte);
  const at::Tensor scale = at::ones({1, 1});
  const std::vector<int64_t> whole = {0, 0}, mx = {1, 32};
  const c10::IValue none, fp32 = at::kFloat, bf16 = at::kBFloat16;
  expect_meta_agrees("quantize", {x, scale, "e4m3"});
  expect_meta_agrees("quantize_blocks", {x, "e4m3", mx, "e8m0"});
  expect_meta_agrees("quantize_blocks", {sample({2, 3, 70}), "e5m2", mx});
  expect_meta_agrees("dequantize", {codes, scale, "e4m3", whole, bf16});
  expect_meta_agrees("amax", {x});
  expect_meta_agrees("column_sum", {sample({2, 3, 4})});
  expect_meta_agrees("transpose", {x});
  expect_meta_agrees("gemm", {x, y, none, "output", bf16});
  expect_meta_agrees("gemm", {x, sample({6, 3}), none, "grad_input", fp32});
  expect_meta_agrees("gemm", {x, sample({4, 3}), none, "grad_weight", fp32});
  expect_meta_agrees("scaled_gemm", {codes, codes, scale, scale, "e4m3", "e5m2", whole, whole, none, "output", fp32});
  for (const char* kind : {"layernorm", "rmsnorm"}) {
    expect_meta_agrees("norm_forward", {x, none, vector, none, kind, false, 1e-5, bf16});
    expect_meta_agrees("norm_forward", {x, x, vector, none, kind, true, 1e-5, fp32});
    expect_meta_agrees("norm_backward", {x, none, x, vector, at::zeros({4}), at::ones({4}), kind, false, 1e-5});
    expect_meta_agrees("norm", {x, vector, none, kind});
    expect_meta_agrees("norm_residual", {x, x, vector, none, kind});
  }
  for (const char* kind : {"gelu", "swiglu"}) {
    expect_meta_agrees("activation_forward", {x, kind});
    expect_meta_agrees("activation", {x, kind});
  }
  expect_meta_agrees("activation_backward", {x, sample({4, 3}), "swiglu"});
  const std::vector<double> clamp = {0.5, 1.0, 0.25};
  expect_meta_agrees("activation_forward", {x, "clamped_swiglu", clamp});
  expect_meta_agrees("activation_backward", {x, sample({4, 3}), "clamped_swiglu", clamp});
  const at::Tensor scores = sample({2, 3, 4, 5});
  expect_meta_agrees("softmax_forward", {scores, 0.5, "causal", none});
  expect_meta_agrees("softmax_backward", {scores, scores, 0.5});
  expect_meta_agrees("softmax", {scores});
  expect_meta_agrees("linear", {sample({2, 3, 6}), y, none, bf16});
  const at::Tensor tokens = at::zeros({2, 3}, at::kLong), hidden = sample({2, 3, 6});
  expect_meta_agrees("embedding_forward", {tokens, y, y, 1, bf16});
  expect_meta_agrees("embedding_backward", {hidden, tokens, 5, 4, 1, bf16});
  expect_meta_agrees("embedding", {tokens, y});
  for (const char* reduction : {"none", "mean", "sum"}) {
    expect_meta_agrees("cross_entropy_forward", {hidden, tokens, none, reduction, -100, 0.0, true});
    expect_meta_agrees("cross_entropy_forward", {hidden, tokens, vector, reduction, -100, 0.0, false});
    expect_meta_agrees("linear_cross_entropy_forward",
                       {hidden, y, tokens, reduction, -100, 0.0, bf16, std::vector<bool>{true, false}});
    expect_meta_agrees("linear_cross_entropy_forward",
                       {hidden, y, tokens, reduction, -100, 0.0, fp32, std::vector<bool>{false, true}});
    expect_meta_agrees("cross_entropy", {hidden, tokens, none, reduction});
  }
  expect_meta_agrees("cross_entropy_backward", {vector.select(0, 0), hidden, tokens, none, "mean", -100, 0.0});
  expect_meta_agrees("linear_cross_entropy", {hidden, y, tokens});
}

// FP32 against double: 64 roundings of the largest term, which row sums of this length stay well under.
void expect_close(const at::Tensor& got, const at::Tensor& exact, const std::string& what) {
  const double largest = exact.numel() == 0 ? 0 : exact.abs().max().item<double>();
  testing::expect_within(got, exact, at::full_like(exact, 64 * 0x1p-24 * std::max(largest, 1.0)), what);
}

TEST(Norm, MatchesTorchInDouble) {
  at::manual_seed(2);
  const at::Tensor grad = sample({3, 5, 40}), grad_sum = sample({3, 5, 40});
  const std::vector<at::Tensor> values = {sample({3, 5, 40}), sample({3, 5, 40}), sample({40}), sample({40})};
  for (const NormKind kind : {NormKind::kLayerNorm, NormKind::kRmsNorm}) {
    for (const bool zero_centered : {false, true}) {
      std::vector<at::Tensor> ours, doubles;
      for (const at::Tensor& value : values) {
        ours.push_back(leaf(value));
        doubles.push_back(leaf(value, at::kDouble));
      }
      const bool layer_norm = kind == NormKind::kLayerNorm;
      const NormOutput got =
          norm({.x = ours[0], .residual = ours[1], .weight = ours[2], .bias = layer_norm ? ours[3] : at::Tensor()},
               {.kind = kind, .zero_centered = zero_centered});
      torch::autograd::backward({got.output, got.sum}, {grad, grad_sum});
      const at::Tensor sum = doubles[0] + doubles[1], weight = zero_centered ? doubles[2] + 1 : doubles[2];
      const at::Tensor exact = layer_norm ? at::layer_norm(sum, {40}, weight, doubles[3])
                                          : sum * at::rsqrt(sum.pow(2).mean(-1, true) + 1e-5) * weight;
      torch::autograd::backward({exact, sum}, {grad.to(at::kDouble), grad_sum.to(at::kDouble)});
      expect_close(got.output.detach(), exact.detach(), "output");
      for (size_t i = 0; i < (layer_norm ? 4u : 3u); ++i) {
        expect_close(ours[i].grad(), doubles[i].grad(), "gradient " + std::to_string(i));
      }
    }
  }
}

TEST(Activation, MatchesTorchInDouble) {
  at::manual_seed(3);
  for (const auto& [kind, text, curve, gated, parameters] : kernels::kActivations) {
    EXPECT_EQ(parse_activation(text), kind);
    EXPECT_EQ(name(kind), text);
    const at::Tensor x = leaf(sample({3, 5, 34})), exact_x = leaf(x, at::kDouble);
    const at::Tensor got = activation(x, kind), exact = composed_activation(exact_x, kind);
    const at::Tensor grad = sample(exact.sizes());
    torch::autograd::backward({got}, {grad});
    torch::autograd::backward({exact}, {grad.to(at::kDouble)});
    expect_close(got.detach(), exact.detach(), std::string(text));
    expect_close(x.grad(), exact_x.grad(), std::string(text));
  }
  for (const std::vector<double>& wrong : {std::vector<double>{1.0}, {0.0, 1.0, 1.0}, {1.0, INFINITY, 1.0}}) {
    EXPECT_THROW(activation_spec(Activation::kClampedSwiglu, wrong), c10::Error);
  }
  EXPECT_THROW(activation_spec(Activation::kGelu, {1.0}), c10::Error);
  EXPECT_THROW(parse_activation("gelo"), c10::Error);
  EXPECT_THROW(activation(sample({3, 5}), Activation::kSwiglu), c10::Error);
}

TEST(Softmax, MatchesTorchInDouble) {
  at::manual_seed(4);
  const at::Tensor keys_masked = at::rand({2, 1, 1, 9}) > 0.7, rows_masked = at::rand({1, 3, 7, 9}) > 0.5;
  const at::Tensor every = at::ones({7, 9}, at::kBool);
  for (const at::Tensor& mask : {at::Tensor(), keys_masked, rows_masked}) {
    for (const Causal causal : {Causal::kNone, Causal::kTopLeft, Causal::kBottomRight}) {
      const at::Tensor x = leaf(sample({2, 3, 7, 9})), exact_x = leaf(x, at::kDouble);
      const at::Tensor got = softmax(x, {.scale = 0.3, .causal = causal, .mask = mask});
      at::Tensor hidden = causal == Causal::kNone      ? at::zeros({7, 9}, at::kBool)
                          : causal == Causal::kTopLeft ? every.triu(1)
                                                       : every.triu(3);
      if (mask.defined()) hidden = hidden | mask;
      const at::Tensor exact = at::nan_to_num(at::softmax((exact_x * 0.3).masked_fill(hidden, -INFINITY), -1));
      const at::Tensor grad = sample(exact.sizes());
      torch::autograd::backward({got}, {grad});
      torch::autograd::backward({exact}, {grad.to(at::kDouble)});
      expect_close(got.detach(), exact.detach(), "output");
      expect_close(x.grad(), at::nan_to_num(exact_x.grad()), "gradient");
    }
  }
  EXPECT_THROW(softmax(sample({2, 3}), SoftmaxOptions{}), c10::Error);
  EXPECT_THROW(softmax(sample({1, 1, 2, 3}), {.mask = sample({2, 3})}), c10::Error);
}

TEST(LibraryLinear, MatchesTorchInDouble) {
  at::manual_seed(5);
  const at::Tensor grad = sample({3, 5, 6});
  std::vector<at::Tensor> ours = {leaf(sample({3, 5, 8})), leaf(sample({6, 8})), leaf(sample({6}))}, doubles;
  for (const at::Tensor& value : ours) doubles.push_back(leaf(value, at::kDouble));
  const at::Tensor got = call("linear", {ours[0], ours[1], ours[2]})[0].toTensor();
  const at::Tensor exact = at::linear(doubles[0], doubles[1], doubles[2]);
  torch::autograd::backward({got}, {grad});
  torch::autograd::backward({exact}, {grad.to(at::kDouble)});
  expect_close(got.detach(), exact.detach(), "output");
  for (size_t i = 0; i < 3; ++i) expect_close(ours[i].grad(), doubles[i].grad(), "gradient " + std::to_string(i));
}

// As many blocks as fit, without an overflow.
TEST(Library, BlocksBeyondTheMatrixAreOneBlock) {
  const at::Tensor x = sample({4, 6});
  const std::vector<int64_t> beyond = {INT64_MAX, INT64_MAX}, whole = {0, 0};
  const Stack got = call("quantize_blocks", {x, "e4m3", beyond}),
              expected = call("quantize_blocks", {x, "e4m3", whole});
  for (size_t i = 0; i < 3; ++i) testing::expect_equal(got[i].toTensor(), expected[i].toTensor(), std::to_string(i));
  const at::Tensor values = call("dequantize", {got[0], got[1], "e4m3", beyond, at::kFloat})[0].toTensor();
  testing::expect_equal(values, call("dequantize", {got[0], got[1], "e4m3", whole, at::kFloat})[0].toTensor(),
                        "values");
  expect_meta_agrees("quantize_blocks", {x, "e4m3", beyond});
}

TEST(Library, ErrorsNameTheOpWhatItExpectedAndWhatItGot) {
  const at::Tensor x = sample({4, 6}), codes = x.to(at::kByte), heads = sample({1, 2, 3, 8});
  const std::vector<int64_t> whole = {0, 0}, negative = {-1, 0}, none = {};
  const auto backward = [&](const at::Tensor& grad, const at::Tensor& output, const at::Tensor& lse) {
    return Stack{grad,          heads,         heads, heads,     output, lse, c10::IValue(),
                 c10::IValue(), c10::IValue(), 1.0,   "no_mask", 0.0,    0,   true};
  };
  const at::Tensor lse = at::zeros({1, 2, 3});
  for (const auto& [name, arguments] : std::initializer_list<std::pair<const char*, Stack>>{
           {"quantize", {x, at::ones({2}), "e4m3"}},
           {"quantize", {x, at::ones({1}), "e9m9"}},
           {"quantize_blocks", {x, "e4m3", std::vector<int64_t>{-1, 0}}},
           {"dequantize", {x, at::ones({1}), "e4m3", std::vector<int64_t>{0, 0}, at::kFloat}},
           {"gemm", {x, sample({5, 7}), c10::IValue(), "output", at::kFloat}},
           {"gemm", {x, x, c10::IValue(), "sideways", at::kFloat}},
           {"transpose", {sample({2, 3, 4})}},
           {"dequantize", {codes, at::ones({1}), "e4m3", negative, at::kFloat}},
           {"dequantize", {codes, at::ones({1}), "e4m3", none, at::kFloat}},
           {"dequantize", {sample({3}), at::ones({1}), "e4m3", whole, at::kFloat}},
           {"scaled_gemm",
            {codes, codes, at::ones({1}), at::ones({1}), "e4m3", "e4m3", whole, negative, c10::IValue(), "output",
             at::kFloat}},
           {"attention_backward", backward(heads, heads, at::zeros({1}))},
           {"attention_backward", backward(heads, heads, lse.to(at::kDouble))},
           {"attention_backward", backward(heads, heads.narrow(3, 0, 4), lse)},
           {"attention_backward", backward(sample({2, 3, 8}), heads, lse)},
           {"attention_packed_backward",
            {heads, sample({1, 3, 6, 8}), 2, 3, false, heads, lse, c10::IValue(), c10::IValue(), c10::IValue(), 1.0,
             "no_mask", 0.0, 0, true}},
       }) {
    try {
      call(name, arguments);
      ADD_FAILURE() << name << ": expected an error";
    } catch (const c10::Error& error) {
      const std::string text = error.what_without_backtrace();
      EXPECT_NE(text.find("expected"), std::string::npos) << text;
      EXPECT_NE(text.find("got"), std::string::npos) << text;
    }
  }
}

}  // namespace
}  // namespace plimsoll::ops
