// Linear layers under recipes of four bits against products of the codes that the contract defines, made apart in scalar
// FP32 by quantize_fp4_oracle.h and multiplied in double.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <torch/csrc/autograd/autograd.h>

#include "plimsoll/kernels/quantize_fp4/quantize_fp4_oracle.h"
#include "plimsoll/ops/linear/linear.h"
#include "plimsoll/ops/linear/tensor_codes.h"
#include "plimsoll/ops/tensor/dtype.h"
#include "plimsoll/ops/testing.h"
#include "plimsoll/watch/session.h"

namespace plimsoll::ops {
namespace {

using format::Format;
using kernels::testing::Line;
using recipe::GemmKind;
using recipe::OperandRecipe;
using recipe::Role;
using testing::expect_equal;
using testing::leaf;
using testing::sample;
using testing::shared;

constexpr uint64_t kSeed = 0x9e3779b97f4a7c15u;

struct FourBitLayer {
  at::Tensor x, weight, bias, grad;
};

FourBitLayer four_bit_layer(int64_t tokens, int64_t in, int64_t out) {
  return {sample({tokens, in}), sample({out, in}, 0.1), sample({out}), sample({tokens, out}, 1e-3)};
}

struct FourBitResult {
  at::Tensor output, x, weight;  // gradients
};

FourBitResult run_four_bits(const FourBitLayer& values, const SharedRecipe& recipe, std::optional<uint64_t> seed) {
  LinearScaling scaling{.recipe = recipe, .state = std::make_shared<LinearState>(), .seed = seed};
  const at::Tensor x = leaf(values.x), weight = leaf(values.weight);
  const at::Tensor output = linear(x, weight, values.bias, scaling);
  torch::autograd::backward({output}, {values.grad.to(output.scalar_type())});
  return {output.detach(), x.grad(), weight.grad()};
}

std::vector<Line> lines_of(const at::Tensor& matrix) {
  const at::Tensor dense = matrix.contiguous();
  std::vector<Line> lines;
  for (int64_t i = 0; i < dense.size(0); ++i) {
    const float* const row = dense.const_data_ptr<float>() + i * dense.size(1);
    lines.emplace_back(row, row + dense.size(1));
  }
  return lines;
}

// Words for the roundings of an operand; the step of rotations is 0.
runtime::RoundingWords rounding_words(Role role, bool along_columns) {
  const uint64_t of_rows = role == Role::kGradOutput ? 1 : role == Role::kInput ? 3 : 5;
  return {kSeed, along_columns ? of_rows + 1 : of_rows};
}

// Values of the codes of a matrix [lines, sum], in double; `side` lines share a scale.
at::Tensor values_of_codes(const at::Tensor& matrix, const OperandRecipe& operand, Role role, bool along_columns,
                           size_t side) {
  std::vector<Line> lines = lines_of(matrix);
  const bool eden = operand.scaling == format::Fp4Scaling::kMsEden;
  const size_t numbers = eden ? (lines.front().size() + 15) / 16 : lines.front().size();  // random ones of a line
  float amax = 0;
  for (Line& line : lines) {
    line = kernels::testing::rotated(line, {.size = operand.rotation, .seed = kSeed, .step = 0});
    amax = kernels::testing::larger_amax(amax, kernels::testing::amax_of(line));
  }
  const bool nvfp4 = format::is_nvfp4(operand.scaling);
  const float encode_scale = nvfp4 ? format::Nvfp4::encode_scale(amax, operand.scaling) : 1.0f;
  const double tensor_scale = 1.0f / encode_scale;
  const runtime::RoundingWords words = rounding_words(role, along_columns);
  const auto random_of = [&](size_t line, size_t i) {
    const size_t word =
        along_columns ? (i / 2) * 32 * ((lines.size() + 31) / 32) + line : line * 16 * ((numbers + 31) / 32) + i / 2;
    return static_cast<uint16_t>(words.word(uint64_t{word}) >> (16 * (i % 2)));
  };
  const auto block = static_cast<size_t>(format::fp4_block(operand.scaling));
  const size_t length = lines.front().size();
  at::Tensor values = at::zeros({static_cast<int64_t>(lines.size()), static_cast<int64_t>(length)}, at::kDouble);
  auto out = values.accessor<double, 2>();
  for (size_t first = 0; first < lines.size(); first += side) {
    const size_t last = std::min(first + side, lines.size());
    const std::vector<Line> together(lines.begin() + static_cast<int64_t>(first),
                                     lines.begin() + static_cast<int64_t>(last));
    for (size_t begin = 0; begin < length; begin += block) {
      const uint8_t scale = kernels::testing::scale_of(together, begin, operand.scaling, encode_scale);
      for (size_t line = first; line < last; ++line) {
        const uint16_t random_of_block = random_of(line, begin / block);
        const uint8_t stored =
            eden ? kernels::testing::stored_scale_of(lines[line], begin, operand.scaling, encode_scale,
                                                     operand.stochastic ? &random_of_block : nullptr)
                 : scale;
        for (size_t i = begin; i < std::min(begin + block, length); ++i) {
          const uint16_t random = random_of(line, i);
          const uint8_t code = kernels::testing::code_of(lines[line][i], scale, operand.scaling, encode_scale,
                                                         operand.stochastic && !eden ? &random : nullptr);
          out[static_cast<int64_t>(line)][static_cast<int64_t>(i)] =
              static_cast<double>(format::E2m1::decode(code)) *
              static_cast<double>(format::fp4_decode_scale(operand.scaling, stored)) * tensor_scale;
        }
      }
    }
  }
  return values;
}

// The logical matrix [lines, sum] that enters a product, in double.
at::Tensor operand_in_double(const at::Tensor& stored, const recipe::Recipe& recipe, Role role, GemmKind gemm) {
  const bool over_rows = recipe::reduces_over_rows(role, gemm);
  const OperandRecipe operand = recipe.operand(role, gemm);
  const OperandRecipe read = recipe.stored_operand(role, gemm);
  const auto logical = [&](const at::Tensor& values) {
    return (over_rows ? values.t() : values).contiguous().to(at::kDouble);
  };
  if (read.format != Format::kE2m1) {
    if (read.source == recipe::ScaleSource::kNone) return logical(stored.to(dtype_of(read.format)));
    return logical(dequantize(quantize(stored, quantize_options(read, {})).tensor, at::kFloat));
  }
  if (operand.source == recipe::ScaleSource::kNone) {  // values of the codes of `output`, in high precision
    const at::Tensor codes = values_of_codes(stored, read, role, false,
                                             static_cast<size_t>(std::max<int64_t>(read.granularity.block_rows, 1)));
    return logical(codes.to(dtype_of(operand.format)));
  }
  const auto side = static_cast<size_t>(operand.granularity.block_rows);
  return values_of_codes(over_rows ? stored.t() : stored, operand, role, over_rows, side);
}

void expect_product(const at::Tensor& got, const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias,
                    const std::string& what) {
  at::Tensor exact = at::matmul(a, b.t());
  at::Tensor bound = at::matmul(a.abs(), b.abs().t()) * kernels::gemm_error_bound(a.size(1), 1.0);
  if (bias.defined()) {
    exact = exact + bias.to(at::kDouble);
    bound = bound + exact.abs() * 0x1p-24;
  }
  testing::expect_within(got, exact, bound + exact.abs() * 0x1p-24, what);
}

std::vector<SharedRecipe> four_bit_recipes() {
  using recipe::Mxfp4Scaling;
  using recipe::Nvfp4Scaling;
  constexpr Format kWide = Format::kFp32;
  return {
      shared(Nvfp4Scaling{.high_precision_format = kWide}),
      shared(Nvfp4Scaling{.four_over_six = true, .high_precision_format = kWide}),
      shared(Nvfp4Scaling{.disable_rht = true, .high_precision_format = kWide}),
      shared(Nvfp4Scaling{.disable_stochastic_rounding = true, .high_precision_format = kWide}),
      shared(Nvfp4Scaling{.disable_2d_quantization = true, .high_precision_format = kWide}),
      shared(Nvfp4Scaling{.override_linear_precision = {.output = true}, .high_precision_format = kWide}),
      shared(Nvfp4Scaling{.override_linear_precision = {.grad_input = true}, .high_precision_format = kWide}),
      shared(Nvfp4Scaling{.override_linear_precision = {.grad_weight = true}, .high_precision_format = kWide}),
      shared(
          Nvfp4Scaling{.backward_override = recipe::BackwardOverride::kHighPrecision, .high_precision_format = kWide}),
      shared(Nvfp4Scaling{.backward_override = recipe::BackwardOverride::kDequantized, .high_precision_format = kWide}),
      shared(Nvfp4Scaling{.ms_eden = true, .high_precision_format = kWide}),
      shared(Nvfp4Scaling{.ms_eden = true, .disable_rht = true, .high_precision_format = kWide}),
      shared(Nvfp4Scaling{.ms_eden = true, .disable_stochastic_rounding = true, .high_precision_format = kWide}),
      shared(Nvfp4Scaling{
          .ms_eden = true, .override_linear_precision = {.grad_input = true}, .high_precision_format = kWide}),
      shared(Mxfp4Scaling{.high_precision_format = kWide}),
      shared(Mxfp4Scaling{.rounding = recipe::ScaleRounding::kDown, .high_precision_format = kWide}),
      shared(
          Mxfp4Scaling{.backward_override = recipe::BackwardOverride::kDequantized, .high_precision_format = kWide})};
}

TEST(FourBitLinear, MultipliesTheCodesOfTheContractOnEveryInstructionSet) {
  at::manual_seed(1);
  for (const auto& [tokens, in, out] : {std::array<int64_t, 3>{1, 1, 1}, {5, 33, 17}, {130, 257, 65}}) {
    const FourBitLayer values = four_bit_layer(tokens, in, out);
    for (const SharedRecipe& recipe : four_bit_recipes()) {
      const auto operand = [&](const at::Tensor& stored, Role role, GemmKind gemm) {
        return operand_in_double(stored, *recipe, role, gemm);
      };
      const at::Tensor x = operand(values.x, Role::kInput, GemmKind::kOutput);
      const at::Tensor weight = operand(values.weight, Role::kWeight, GemmKind::kOutput);
      const at::Tensor grad = operand(values.grad, Role::kGradOutput, GemmKind::kGradInput);
      const at::Tensor turned_weight = operand(values.weight, Role::kWeight, GemmKind::kGradInput);
      const at::Tensor turned_grad = operand(values.grad, Role::kGradOutput, GemmKind::kGradWeight);
      const at::Tensor turned_x = operand(values.x, Role::kInput, GemmKind::kGradWeight);
      for (const runtime::Isa isa : {runtime::Isa::kPortable, runtime::Isa::kAvx2, runtime::Isa::kAvx512,
                                     runtime::Isa::kAvx512Bf16, runtime::Isa::kAmx}) {
        if (isa > runtime::matmul_isa()) continue;
        const runtime::ScopedIsa scoped(isa);
        const std::string name = recipe::to_json(*recipe) + " on " + std::string(runtime::name(isa));
        const FourBitResult got = run_four_bits(values, recipe, kSeed);
        expect_product(got.output, x, weight, values.bias, name + " output");
        expect_product(got.x, grad, turned_weight, {}, name + " grad_input");
        expect_product(got.weight, turned_grad, turned_x, {}, name + " grad_weight");
      }
    }
  }
}

at::Tensor generator_state() { return at::globalContext().defaultGenerator(at::kCPU).get_state(); }

TEST(FourBitLinear, DrawsItsSeedFromTorchWhereItTrains) {
  at::manual_seed(2);
  const FourBitLayer values = four_bit_layer(40, 48, 36);
  const SharedRecipe nvfp4 = shared(recipe::by_name("nvfp4"));
  const FourBitResult first = run_four_bits(values, nvfp4, kSeed), again = run_four_bits(values, nvfp4, kSeed);
  expect_equal(again.weight, first.weight, "one seed");
  expect_equal(again.x, first.x, "one seed");
  at::manual_seed(3);
  const FourBitResult drawn = run_four_bits(values, nvfp4, {}), next = run_four_bits(values, nvfp4, {});
  at::manual_seed(3);
  expect_equal(run_four_bits(values, nvfp4, {}).weight, drawn.weight, "the same draw");
  expect_equal(next.output, drawn.output, "nothing random in forward");
  EXPECT_FALSE(at::equal(next.weight, drawn.weight));
  EXPECT_FALSE(at::equal(next.x, drawn.x));

  const at::Tensor before = generator_state();
  run_four_bits(values, shared(recipe::by_name("mxfp4")), {});
  const at::NoGradGuard no_grad;
  LinearScaling scaling{.recipe = nvfp4};
  linear(values.x, values.weight, {}, scaling);
  expect_equal(generator_state(), before, "nothing is drawn");
  scaling.runs_again = true;
  linear(values.x, values.weight, {}, scaling);
  EXPECT_FALSE(at::equal(generator_state(), before));
}

// The codes of a gradient are unbiased but for what saturates: block scales are rounded to nearest, so that the largest
// element may lie above 6.
TEST(FourBitLinear, MeanOfGradInputOverSeedsIsThatOfTheGradient) {
  at::manual_seed(4);
  constexpr int64_t kTokens = 4, kOut = 32, kDraws = 4000;
  FourBitLayer values = four_bit_layer(kTokens, 8, kOut);
  values.weight = at::zeros({kOut, kOut});
  values.weight.fill_diagonal_(1.0f);  // its codes have no error, so the product is the gradient's values
  values.x = sample({kTokens, kOut});
  values.bias = at::zeros({kOut});
  const SharedRecipe recipe = shared(recipe::Nvfp4Scaling{.high_precision_format = Format::kFp32});
  at::Tensor sum = at::zeros({kTokens, kOut}, at::kDouble), squares = at::zeros({kTokens, kOut}, at::kDouble);
  for (uint64_t seed = 0; seed < kDraws; ++seed) {
    const at::Tensor draw = run_four_bits(values, recipe, seed).x.to(at::kDouble);
    sum += draw;
    squares += draw * draw;
  }
  at::Tensor expected = at::zeros({kTokens, kOut}, at::kDouble);
  const float encode_scale = format::Nvfp4::encode_scale(ops::amax(values.grad), format::Fp4Scaling::kNvfp4);
  for (int64_t row = 0; row < kTokens; ++row) {
    for (int64_t block = 0; block < kOut; block += 16) {
      const at::Tensor elements = values.grad[row].narrow(0, block, 16);
      const uint8_t scale = format::Nvfp4::block_scale(elements.abs().max().item<float>(), encode_scale);
      const double largest = 6.0 * static_cast<double>(format::E4m3::decode(scale)) / encode_scale;
      expected[row].narrow(0, block, 16).copy_(elements.to(at::kDouble).clamp(-largest, largest));
    }
  }
  const at::Tensor mean = sum / kDraws;
  const at::Tensor deviation = (squares / kDraws - mean * mean).clamp_min(0).sqrt() / std::sqrt(double{kDraws});
  EXPECT_GT(deviation.max().item<double>(), 0);
  // 2^-16: steps of the 16 random bits; 2^-20: FP32 scales.
  const at::Tensor bound = 5 * deviation + expected.abs().max() * (0x1p-16 + 0x1p-20);
  EXPECT_TRUE(((mean - expected).abs() <= bound).all().item<bool>())
      << ((mean - expected).abs() / bound).max().item<double>();
}

TEST(FourBitLinear, AnInfiniteInputIsReportedAndSeen) {
  at::manual_seed(5);
  FourBitLayer values = four_bit_layer(8, 64, 16);
  values.x[3][5] = std::numeric_limits<float>::infinity();
  for (const char* name : {"nvfp4", "mxfp4"}) {
    LinearScaling scaling{.recipe = shared(recipe::by_name(name)), .state = std::make_shared<LinearState>("layer")};
    const watch::Session session;
    const at::Tensor output = linear(values.x, values.weight, {}, scaling);
    const at::Tensor bad = output.isnan().all(1);
    EXPECT_TRUE(bad[3].item<bool>());
    EXPECT_EQ(bad.all().item<bool>(), std::string_view(name) == "nvfp4") << "one scale of all, or of a block";
    const auto reported = session.slots().non_finite();
    ASSERT_FALSE(reported.empty());
    EXPECT_EQ(reported.front().name, "layer/input");
  }
}

TEST(FourBitLinear, RefusesWhatItCannotDo) {
  const FourBitLayer values = four_bit_layer(4, 32, 16);
  const SharedRecipe nvfp4 = shared(recipe::by_name("nvfp4"));
  EXPECT_THROW(codes_of_weight(values.weight, *nvfp4, {}), c10::ValueError);
  LinearScaling given{.recipe = nvfp4};
  given.given_weight = codes_of_weight(values.weight, recipe::by_name("fp8-current"), {});
  EXPECT_THROW(linear(values.x, values.weight, {}, given), c10::Error);
  LinearScaling held{.recipe = nvfp4, .state = std::make_shared<LinearState>()};
  held.state->weight_source.hold(
      std::make_shared<HeldWeight>(std::vector<CodeSource>{{.weight = values.weight}}, HeldOptions{}));
  EXPECT_THROW(linear(values.x, values.weight, {}, held), c10::Error);
}

}  // namespace
}  // namespace plimsoll::ops
