// Products that read codes with scales of blocks, against the values of these codes, made apart, multiplied in double.
#include "plimsoll/autoscale/block_codes.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "plimsoll/autoscale/parts.h"
#include "plimsoll/autoscale/storage.h"
#include "plimsoll/kernels/gemm/gemm.h"
#include "plimsoll/ops/tensor/quantize.h"
#include "plimsoll/ops/tensor/quantize_fp4.h"
#include "plimsoll/ops/tensor/random_seed.h"
#include "plimsoll/recipe/recipe.h"
#include "plimsoll/runtime/threads_testing.h"

namespace plimsoll::autoscale {
namespace block_codes_test {

using recipe::GemmKind;
using recipe::Role;

struct Shape {
  int64_t m, k, n;
};
constexpr Shape kShapes[] = {{1, 1, 1}, {3, 15, 2}, {5, 33, 17}, {20, 100, 36}};
constexpr int32_t kPowers[] = {-40, -3, 0, 21};

std::shared_ptr<Session> session_of(ProductFormat values, ProductFormat gradients) {
  return std::make_shared<Session>(Settings{.product_values = values, .product_gradients = gradients});
}
std::shared_ptr<Session> session_of(ProductFormat values) {
  return session_of(values, values == ProductFormat::kMxfp4 ? ProductFormat::kMxfp8 : values);
}

// Rows of very different sizes, and some zeros, as FP16.
at::Tensor data_of(int64_t rows, int64_t cols, uint64_t seed) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  const at::Tensor normal = at::randn({rows, cols}, generator);
  const at::Tensor sizes = at::randint(-6, 4, {rows, 1}, generator).exp2();
  return (normal * sizes).masked_fill(at::rand({rows, cols}, generator) < 0.1, 0).to(at::kHalf);
}

at::Tensor tensor_of(const at::Tensor& data, int32_t exponent, Role role, const std::shared_ptr<Session>& session) {
  const at::Tensor x = join({data, exponent}, session);
  scaled_impl(x).shared().parameter = role == Role::kWeight;
  scaled_impl(x).shared().gradient = role == Role::kGradOutput;
  return x;
}

// The nearest of 0, 0.5, 1, 1.5, 2, 3, 4, 6; ties to an even code.
at::Tensor nearest_e2m1(const at::Tensor& x) {
  const at::Tensor magnitude = x.abs();
  const at::Tensor unit = at::where(magnitude < 2, 0.5, at::where(magnitude < 4, 1.0, 2.0)).to(x.scalar_type());
  return at::copysign((magnitude / unit).round().mul(unit).clamp_max(6), x);
}
at::Tensor nearest_e4m3(const at::Tensor& x) { return x.clamp(-448, 448).to(at::kFloat8_e4m3fn).to(at::kFloat); }
// The least power of two that amax / largest does not exceed; 1 for zeros.
at::Tensor power_above(const at::Tensor& amax, double largest) {
  const at::Tensor exact = amax.to(at::kDouble) / largest;
  return at::where(exact > 0, exact.log2().ceil().exp2(), 1.0).to(at::kFloat);
}

// Values, in double, of the codes of a matrix [rows, sum] under rounding to nearest; side: rows that share a scale.
at::Tensor nearest_values(const at::Tensor& data, ProductFormat format, int64_t side = 1) {
  const at::Tensor x = data.to(at::kFloat);
  const int64_t rows = x.size(0), sum = x.size(1), block = format == ProductFormat::kNvfp4 ? 16 : 32;
  const int64_t more_rows = (side - rows % side) % side, more = (block - sum % block) % block;
  const at::Tensor padded = at::constant_pad_nd(x, {0, more, 0, more_rows});
  const at::Tensor blocks = padded.reshape({padded.size(0) / side, side, -1, block});
  const at::Tensor amax = blocks.abs().amax({1, 3}, /*keepdim=*/true);
  at::Tensor values;
  if (format == ProductFormat::kNvfp4) {  // FP32, an operation at a time
    const float encode_scale = 2688.0f / amax.max().item<float>();
    const at::Tensor scale = nearest_e4m3(amax * (encode_scale / 6.0f));
    const at::Tensor factor = (encode_scale / scale).clamp_max(static_cast<double>(std::numeric_limits<float>::max()));
    values = nearest_e2m1(blocks * factor).to(at::kDouble) * scale * static_cast<double>(1.0f / encode_scale);
  } else if (format == ProductFormat::kMxfp4) {
    const at::Tensor scale = power_above(amax, 6);
    values = nearest_e2m1(blocks / scale).to(at::kDouble) * scale;
  } else {
    const at::Tensor scale = power_above(amax, 448);
    values = nearest_e4m3(blocks / scale).to(at::kDouble) * scale;
  }
  return values.reshape(padded.sizes()).narrow(0, 0, rows).narrow(1, 0, sum);
}

at::Tensor values_by_role(const at::Tensor& data, ProductFormat format, Role role) {
  const bool is_square = role == Role::kWeight && format == ProductFormat::kNvfp4;
  return nearest_values(data, format, is_square ? 16 : 1);
}

// A result [m, n] of codes of the values a [m, sum] and b [n, sum], but for the GEMM's error and one rounding to FP16.
void expect_product(const at::Tensor& result, const at::Tensor& a, const at::Tensor& b, int32_t exponent,
                    const std::string& what) {
  const double power = std::exp2(exponent);
  const at::Tensor exact = a.matmul(b.t()) * power;
  const at::Tensor terms = a.abs().matmul(b.abs().t()) * power;
  const double smallest = std::exp2(scaled_impl(result).scale().exponent - 25);
  const at::Tensor gemm = terms * kernels::gemm_error_bound(a.size(1), 1.0);
  const at::Tensor bound = gemm + (exact.abs() + gemm) * 0x1p-11 + smallest;
  const at::Tensor got = value_of(result).to(at::kDouble);
  ASSERT_EQ(got.sizes(), exact.sizes()) << what;
  EXPECT_TRUE((got - exact).abs().le(bound).all().item<bool>())
      << what << ": " << ((got - exact).abs() / bound).max().item<double>();
}

TEST(BlockCodes, AProductReadsTheNearestCodesAlongTheSum) {
  for (const ProductFormat format : {ProductFormat::kNvfp4, ProductFormat::kMxfp4, ProductFormat::kMxfp8}) {
    for (const auto& [m, k, n] : kShapes) {
      const at::Tensor x = data_of(m, k, 1), w = data_of(n, k, 2);
      for (const Role role : {Role::kInput, Role::kWeight}) {
        const at::Tensor a = nearest_values(x, format), b = values_by_role(w, format, role);
        for (const int32_t power : kPowers) {
          const auto session = session_of(format);
          const std::string what = c10::str(recipe::name_of(kProductFormats, format), " ", m, " x ", k, " x ", n,
                                            " at 2^", power, " role ", static_cast<int>(role));
          const at::Tensor left = tensor_of(x, power, Role::kInput, session);
          const at::Tensor right = tensor_of(w, 5, role, session);
          expect_product(at::mm(left, right.t()), a, b, power + 5, what);
          // The same matrices as they lie across.
          const at::Tensor across = tensor_of(w.t().contiguous(), 5, role, session);
          expect_product(at::mm(tensor_of(x.t().contiguous(), power, Role::kInput, session).t(), across), a, b,
                         power + 5, what);
          EXPECT_EQ(session->counts().at("aten::mm").codes, 2) << what;
        }
      }
    }
  }
}

TEST(BlockCodes, AddmmAddsItsBiasToTheProduct) {
  const at::Tensor x = data_of(9, 50, 3), w = data_of(7, 50, 4), bias = data_of(1, 7, 5).squeeze(0);
  for (const ProductFormat format : {ProductFormat::kNvfp4, ProductFormat::kMxfp4}) {
    const auto session = session_of(format);
    const at::Tensor result =
        at::addmm(tensor_of(bias, 0, Role::kWeight, session), tensor_of(x, 0, Role::kInput, session),
                  tensor_of(w, 0, Role::kWeight, session).t());
    // The bias is one more term, which is no code.
    const at::Tensor a = at::cat({nearest_values(x, format), at::ones({9, 1}, at::kDouble)}, 1);
    const at::Tensor b = at::cat({values_by_role(w, format, Role::kWeight), bias.to(at::kDouble).unsqueeze(1)}, 1);
    expect_product(result, a, b, 0, std::string(recipe::name_of(kProductFormats, format)));
    EXPECT_EQ(session->counts().at("aten::addmm").codes, 1);
  }
}

TEST(BlockCodes, ANumberTimesTwoHasTheCodesAndTwiceTheScale) {
  const at::Tensor x = data_of(18, 40, 6).to(at::kFloat);
  for (const Role role : {Role::kInput, Role::kWeight, Role::kGradOutput}) {
    for (const ProductFormat format : {ProductFormat::kNvfp4, ProductFormat::kMxfp4, ProductFormat::kMxfp8}) {
      const auto codes = [&](const at::Tensor& matrix) {
        at::manual_seed(7);
        const BlockOperand operand = {.matrix = matrix, .format = format, .role = role};
        return encode_blocks({operand, BlockOperand{.matrix = matrix}})[0].codes;
      };
      const ops::ScaledTensor one = codes(x);
      for (const int32_t power : {-60, -1, 1, 17, 60}) {
        const ops::ScaledTensor other = codes(x * std::exp2(power));
        EXPECT_TRUE(at::equal(other.data, one.data)) << power;
        if (format == ProductFormat::kNvfp4) {
          EXPECT_TRUE(at::equal(other.block_scale, one.block_scale)) << power;
          EXPECT_TRUE(at::equal(other.scale, one.scale * std::exp2(power))) << power;
          continue;
        }
        const bool mxfp4 = format == ProductFormat::kMxfp4;
        const at::Tensor before = (mxfp4 ? one.block_scale : one.scale).to(at::kInt);
        const at::Tensor after = (mxfp4 ? other.block_scale : other.scale).to(at::kInt);
        // A block of zeros has the least scale.
        EXPECT_TRUE(at::equal(after, at::where(before == 0, before, before + power))) << power;
      }
    }
  }
}

TEST(BlockCodes, AnExponentDoesNotChangeTheDataOfAResult) {
  const at::Tensor a = data_of(20, 37, 8), b = data_of(11, 37, 9);
  for (const ProductFormat format : {ProductFormat::kNvfp4, ProductFormat::kMxfp4}) {
    for (const Role left : {Role::kInput, Role::kGradOutput}) {
      for (const Role right : {Role::kInput, Role::kWeight, Role::kGradOutput}) {
        const auto session = session_of(format);
        const auto run = [&](int32_t i, int32_t j) {
          at::manual_seed(10);
          return at::mm(tensor_of(a, i, left, session), tensor_of(b, j, right, session).t());
        };
        const at::Tensor reference = run(0, 0);
        for (const int32_t power : kPowers) {
          const at::Tensor result = run(power, 7);
          EXPECT_TRUE(at::equal(scaled_impl(result).data(), scaled_impl(reference).data())) << power;
          EXPECT_EQ(scaled_impl(result).scale().exponent, scaled_impl(reference).scale().exponent + power + 7);
        }
      }
    }
  }
}

// Values of the codes of a gradient or of what is multiplied with it, as recipe nvfp4 has them, of the next draw.
at::Tensor nvfp4_values(const at::Tensor& matrix, Role role, GemmKind product, uint64_t seed) {
  ops::Fp4Operands wanted{.role = role};
  wanted.add(recipe::Recipe(recipe::Nvfp4Scaling{}).operand(role, product));
  return ops::dequantize(ops::quantize_fp4(matrix, wanted, seed).rows, at::kFloat).to(at::kDouble);
}

TEST(BlockCodes, AGradientIsRoundedStochasticallyUnderNvfp4) {
  for (const auto& [m, k, n] : kShapes) {
    const at::Tensor g = data_of(m, k, 11), w = data_of(n, k, 12);
    const auto session = session_of(ProductFormat::kNvfp4);
    const auto run = [&] {
      return at::mm(tensor_of(g, -30, Role::kGradOutput, session), tensor_of(w, 2, Role::kWeight, session).t());
    };
    at::manual_seed(13);
    const at::Tensor result = run(), next = run();
    at::manual_seed(13);
    const at::Tensor codes =
        nvfp4_values(g, Role::kGradOutput, GemmKind::kGradInput, static_cast<uint64_t>(ops::draw_seed()));
    expect_product(result, codes, values_by_role(w, ProductFormat::kNvfp4, Role::kWeight), -28, c10::str(m, " x ", k));
    EXPECT_TRUE(m * k < 100 || !at::equal(value_of(next), value_of(result)));
  }
}

TEST(BlockCodes, AGradientAndAnInputAreRotatedAlike) {
  for (const auto& [m, k, n] : kShapes) {
    const at::Tensor g = data_of(m, k, 14), x = data_of(n, k, 15);
    const auto session = session_of(ProductFormat::kNvfp4);
    at::manual_seed(16);
    const at::Tensor result =
        at::mm(tensor_of(g, 0, Role::kGradOutput, session), tensor_of(x, 0, Role::kInput, session).t());
    at::manual_seed(16);
    const auto seed = static_cast<uint64_t>(ops::draw_seed());
    const at::Tensor a = nvfp4_values(g, Role::kGradOutput, GemmKind::kGradWeight, seed);
    const at::Tensor b = nvfp4_values(x, Role::kInput, GemmKind::kGradWeight, seed);
    EXPECT_EQ(a.size(1) % 16, 0);
    expect_product(result, a, b, 0, c10::str(m, " x ", k, " x ", n));
  }
}

TEST(BlockCodes, AGradientOfMxfp4HasEightBits) {
  const at::Tensor g = data_of(12, 45, 17), x = data_of(6, 45, 18);
  const auto session = session_of(ProductFormat::kMxfp4);
  for (const Role role : {Role::kInput, Role::kWeight}) {
    const at::Tensor result = at::mm(tensor_of(g, 0, Role::kGradOutput, session), tensor_of(x, 0, role, session).t());
    expect_product(result, nearest_values(g, ProductFormat::kMxfp8), nearest_values(x, ProductFormat::kMxfp4), 0, "");
  }
}

TEST(BlockCodes, AnOperandThatIsNotFiniteIsReadAsData) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    at::Tensor x = data_of(6, 40, 19);
    const at::Tensor w = data_of(8, 40, 20), clean = x.slice(0, 0, 5).to(at::kDouble);
    x[5][33] = bad;
    for (const ProductFormat format : {ProductFormat::kNvfp4, ProductFormat::kMxfp4}) {
      for (const Role left : {Role::kInput, Role::kGradOutput}) {  // with an input, a gradient would be rotated
        const auto session = session_of(format);
        const at::Tensor result = at::mm(tensor_of(x, 0, left, session), tensor_of(w, 0, Role::kInput, session).t());
        EXPECT_FALSE(value_of(result)[5].isfinite().any().item<bool>());
        expect_product(result.slice(0, 0, 5), clean, nearest_values(w, format), 0, "finite rows");
      }
    }
  }
}

TEST(BlockCodes, AnOperandOfZerosOrOfNoneHasNoCodes) {
  const auto session = session_of(ProductFormat::kNvfp4);
  const at::Tensor x = tensor_of(data_of(4, 20, 21), 0, Role::kInput, session);
  const at::Tensor zeros = tensor_of(at::zeros({20, 3}, at::kHalf), 0, Role::kGradOutput, session);
  EXPECT_TRUE(at::equal(value_of(at::mm(x, zeros)), at::zeros({4, 3})));
  const at::Tensor none = tensor_of(at::zeros({0, 20}, at::kHalf), 0, Role::kGradOutput, session);
  EXPECT_EQ(at::mm(none, x.t()).sizes(), at::IntArrayRef({0, 4}));
  const at::Tensor thin = tensor_of(at::zeros({20, 0}, at::kHalf), 0, Role::kInput, session);
  EXPECT_TRUE(at::equal(value_of(at::mm(thin, none.t().slice(0, 0, 0))), at::zeros({20, 0})));
}

TEST(BlockCodes, AViewHasTheCodesOfItsCopy) {
  const auto session = session_of(ProductFormat::kNvfp4);
  const at::Tensor whole = tensor_of(data_of(30, 80, 22), 3, Role::kInput, session);
  const at::Tensor w = tensor_of(data_of(9, 40, 23), 0, Role::kWeight, session);
  const at::Tensor views[] = {whole.slice(1, 7, 47), whole.slice(1, 0, 80, 2),
                              whole.slice(0, 3, 4).slice(1, 0, 40).expand({5, 40}),
                              whole.slice(0, 0, 20, 3).slice(1, 5, 45)};
  for (const at::Tensor& view : views) {
    const at::Tensor copy = tensor_of(scaled_impl(view).data().contiguous(), 3, Role::kInput, session);
    EXPECT_TRUE(at::equal(value_of(at::mm(view, w.t())), value_of(at::mm(copy, w.t())))) << &view - views;
  }
}

TEST(BlockCodes, AnyNumberOfThreadsGivesTheSameBits) {
  const at::Tensor a = data_of(130, 257, 24), b = data_of(65, 257, 25);
  for (const ProductFormat format : {ProductFormat::kNvfp4, ProductFormat::kMxfp4}) {
    for (const Role left : {Role::kInput, Role::kGradOutput}) {
      for (const Role right : {Role::kInput, Role::kWeight}) {
        const auto session = session_of(format);
        const auto run = [&](int threads) {
          const runtime::testing::ScopedThreads scoped(threads);
          at::manual_seed(26);
          return value_of(at::mm(tensor_of(a, 0, left, session), tensor_of(b, 0, right, session).t()));
        };
        const at::Tensor one = run(1);
        for (const int threads : {2, 3, 5}) EXPECT_TRUE(at::equal(run(threads), one)) << threads;
      }
    }
  }
}

}  // namespace block_codes_test
}  // namespace plimsoll::autoscale
