// E2M1 codes that stand in a weight's place, against the formats' definitions, element by element.
#include "plimsoll/ops/linear/fp4_codes.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <limits>

#include "plimsoll/kernels/gemm/gemm.h"
#include "plimsoll/ops/linear/linear.h"
#include "plimsoll/ops/testing.h"

namespace plimsoll::ops {
namespace {

using format::E2m1;
using format::Fp4Scaling;
using format::Nvfp4;

constexpr Fp4Scaling kScalings[] = {Fp4Scaling::kNvfp4, Fp4Scaling::kMxfp4};
constexpr CodeKind kKinds[] = {CodeKind::kNvfp4, CodeKind::kMxfp4};

std::vector<CodeSource> sources_of(const std::vector<at::Tensor>& weights) {
  std::vector<CodeSource> sources;
  for (const at::Tensor& weight : weights) sources.push_back({.weight = weight});
  return sources;
}

float encode_scale_of(const at::Tensor& weight, Fp4Scaling scaling) {
  return format::is_nvfp4(scaling) ? Nvfp4::encode_scale(weight.abs().max().item<float>(), scaling) : 1.0f;
}

struct Block {
  uint8_t scale = 0;
  float factor = 0;  // of its elements before they are encoded
};
Block block_of(const float* elements, int64_t count, Fp4Scaling scaling, float encode_scale) {
  float amax = 0;
  for (int64_t i = 0; i < count; ++i) amax = std::max(amax, std::fabs(elements[i]));
  if (!format::is_nvfp4(scaling)) {
    const uint8_t scale = format::Mxfp4::block_scale(amax, scaling);
    return {scale, format::E8m0::decode_inverse(scale)};
  }
  const uint8_t scale = Nvfp4::block_scale(amax, encode_scale);
  return {scale, Nvfp4::factor(encode_scale, scale)};
}

// [rows, cols] fp32: code times block scale of each element of `weight`, fp32.
at::Tensor code_values(const at::Tensor& weight, Fp4Scaling scaling) {
  const at::Tensor values = at::empty_like(weight);
  const int64_t cols = weight.size(1), width = format::fp4_block(scaling);
  const float encode_scale = encode_scale_of(weight, scaling);
  for (int64_t row = 0; row < weight.size(0); ++row) {
    const float* from = weight.const_data_ptr<float>() + row * cols;
    float* to = values.mutable_data_ptr<float>() + row * cols;
    for (int64_t begin = 0; begin < cols; begin += width) {
      const int64_t count = std::min(width, cols - begin);
      const auto [scale, factor] = block_of(from + begin, count, scaling, encode_scale);
      for (int64_t i = begin; i < begin + count; ++i) {
        to[i] = E2m1::decode(E2m1::encode(from[i] * factor)) * format::fp4_decode_scale(scaling, scale);
      }
    }
  }
  return values;
}

// x values^T times the tensor scale, plus bias, by the product of BF16 values.
at::Tensor expected_output(const at::Tensor& x, const at::Tensor& weight, Fp4Scaling scaling, const at::Tensor& bias) {
  const at::Tensor values = code_values(weight.to(at::kFloat).contiguous(), scaling).to(at::kBFloat16);
  const at::Tensor output = at::empty({x.size(0), weight.size(0)}, x.options());
  const ScaledTensor a = plain_values(x, format::Format::kBf16), b = plain_values(values, format::Format::kBf16);
  const float tensor_scale = 1.0f / encode_scale_of(weight.to(at::kFloat), scaling);
  multiply({.a = a, .b = b, .epilogue = {.alpha = tensor_scale, .bias = bias.const_data_ptr<float>()}}, output);
  return output;
}

LinearScaling holding(const std::vector<at::Tensor>& weights, CodeKind kind) {
  LinearScaling scaling = testing::scaling_of(testing::shared(recipe::HighPrecision{.format = format::Format::kBf16}));
  scaling.state->weight_source.hold(std::make_shared<HeldWeight>(sources_of(weights), HeldOptions{.kind = kind}));
  return scaling;
}

TEST(Fp4Codes, AreThoseOfTheirRowsUnderOneTensorScale) {
  at::manual_seed(1);
  for (const Fp4Scaling scaling : kScalings) {
    for (const int64_t cols : {1, 16, 47, 130}) {
      const std::vector<at::Tensor> weights = {testing::sample({5, cols}), testing::sample({3, cols}, 20.0)};
      const Fp4Codes made = fp4_codes_of(sources_of(weights), scaling);
      const at::Tensor all = at::cat(weights);
      const int64_t width = format::fp4_block(scaling);
      const float encode_scale = encode_scale_of(all, scaling);
      ASSERT_EQ(made.tensor_scale.defined(), format::is_nvfp4(scaling));
      if (made.tensor_scale.defined()) {
        EXPECT_EQ(made.tensor_scale.item<float>(), 1.0f / encode_scale);
      }
      ASSERT_EQ(made.codes.sizes(), at::IntArrayRef({8, (cols + 1) / 2}));
      ASSERT_EQ(made.scale.sizes(), at::IntArrayRef({8, (cols + width - 1) / width}));
      for (int64_t i = 0; i < 8 * cols; ++i) {
        const int64_t row = i / cols, col = i % cols, begin = col / width * width;
        const float* elements = all.const_data_ptr<float>() + row * cols;
        const auto [scale, factor] = block_of(elements + begin, std::min(width, cols - begin), scaling, encode_scale);
        ASSERT_EQ(made.scale[row][col / width].item<uint8_t>(), scale);
        const auto pair = made.codes[row][col / 2].item<uint8_t>();
        ASSERT_EQ(col % 2 == 0 ? E2m1::even_of(pair) : E2m1::odd_of(pair), E2m1::encode(elements[col] * factor));
      }
    }
  }
}

TEST(Fp4Codes, AllPartsOfASourceAreReadAndGivenBack) {
  int calls = 0;
  const at::Tensor wide = testing::sample({2, int64_t{6} << 20});  // 24 MiB a row: a part each
  const Fp4Codes made = fp4_codes_of({{.weight = wide, .done = [&] { ++calls; }}}, Fp4Scaling::kMxfp4);
  EXPECT_EQ(calls, 2);
  EXPECT_TRUE(at::equal(
      made.codes, fp4_codes_of(sources_of({wide[0].unsqueeze(0), wide[1].unsqueeze(0)}), Fp4Scaling::kMxfp4).codes));
}

TEST(HeldFp4, MultipliesAsTheValuesOfItsCodesDo) {
  at::manual_seed(2);
  const at::NoGradGuard no_grad;
  for (size_t kind = 0; kind < 2; ++kind) {
    for (const int64_t in : {33, 64, 200}) {
      const std::vector<at::Tensor> weights = {testing::sample({40, in}, 0.1).to(at::kBFloat16),
                                               testing::sample({37, in}, 0.4).to(at::kBFloat16)};
      const at::Tensor joined = at::cat(weights), bias = at::randn({77});
      const LinearScaling scaling = holding(weights, kKinds[kind]);
      for (const int64_t rows : {1, 2, 7, 70}) {
        const at::Tensor x = at::randn({rows, in}).to(at::kBFloat16);
        const at::Tensor expected = expected_output(x, joined, kScalings[kind], bias);
        testing::expect_equal(linear(x, joined, bias, scaling), expected, "held");
        testing::expect_equal(PackedWeights(sources_of(weights), kKinds[kind]).multiply(x).values,
                              expected_output(x, joined, kScalings[kind], at::zeros({77})), "packed");
      }
    }
  }
}

TEST(HeldFp4, TakesAboutHalfAByteAnElement) {
  const at::Tensor weight = testing::sample({64, 192});
  for (const auto& [kind, bits] : {std::pair{CodeKind::kNvfp4, 4.5}, std::pair{CodeKind::kMxfp4, 4.25}}) {
    const PackedWeights packed(sources_of({weight}), kind);
    EXPECT_EQ(static_cast<double>(packed.packed().data.numel()), 64 * 192 * bits / 8);
    EXPECT_NEAR(bytes_of_codes(kind, 64, 192), 64 * 192 * bits / 8, 4);
    EXPECT_EQ(packed.operand().scale.defined(), kind == CodeKind::kNvfp4);
  }
}

TEST(HeldFp4, BadWeightsAreSeenInTheOutput) {
  const at::NoGradGuard no_grad;
  at::Tensor weight = testing::sample({8, 64});
  weight[3][5] = std::numeric_limits<float>::infinity();
  const at::Tensor x = at::ones({1, 64}).to(at::kBFloat16);
  const at::Tensor mx = PackedWeights(sources_of({weight}), CodeKind::kMxfp4).multiply(x).values;
  EXPECT_TRUE(at::equal(mx.isnan().nonzero(), at::tensor({int64_t{0}, int64_t{3}}).unsqueeze(0)));
  EXPECT_TRUE(PackedWeights(sources_of({weight}), CodeKind::kNvfp4).multiply(x).values.isnan().all().item<bool>());
}

TEST(HeldFp4, RefusesGradients) {
  const std::vector<CodeSource> sources = sources_of({testing::sample({4, 16})});
  EXPECT_THROW(HeldWeight(sources, {.has_gradient = true, .kind = CodeKind::kNvfp4}), c10::ValueError);
  EXPECT_THROW(HeldWeight(sources, {.kind = CodeKind::kNvfp4}).operands(true), c10::Error);
}

}  // namespace
}  // namespace plimsoll::ops
