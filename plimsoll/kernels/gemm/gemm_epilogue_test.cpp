// Each part of the epilogue, bit for bit: what it does to the accumulator is defined, so the plain product is the
// oracle of all others.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "plimsoll/kernels/gemm/gemm_test_support.h"
#include "plimsoll/kernels/simd/math.h"

namespace plimsoll::kernels::testing::gemm_epilogue_test {
namespace {

constexpr int64_t kM = 31, kN = 75, kK = 90;
constexpr Format kOutputs[] = {Format::kFp32, Format::kFp16, Format::kBf16, Format::kE4m3, Format::kE5m2};

float apply(F32x16 (*function)(F32x16), float x) {
  float lanes[16];
  store(lanes, function(set(x)));
  return lanes[0];
}
F32x16 gelu_of(F32x16 x) { return gelu(x); }
F32x16 gelu_gradient_of(F32x16 x) { return gelu_gradient(x); }

constexpr float kTwentieth = 0.05f, kThousandth = 0.001f, kThird = 1 / 3.0f, kTen = 10;

int64_t size_of(Format format) { return format::bytes(format); }

// A [kM, kN] matrix of any format with a wide row stride and a fill that writes past the row would destroy.
struct Matrix {
  Format format;
  int64_t stride = kN + 3;
  std::vector<uint8_t> bytes = std::vector<uint8_t>(static_cast<size_t>(kM * stride * size_of(format)), 0x5a);

  uint32_t code(int64_t row, int64_t column) const {
    uint32_t code = 0;
    std::memcpy(&code, bytes.data() + (row * stride + column) * size_of(format), static_cast<size_t>(size_of(format)));
    return code;
  }
  void set(int64_t row, int64_t column, float x) {
    const uint32_t code = encode_reference(format, x);
    std::memcpy(bytes.data() + (row * stride + column) * size_of(format), &code, static_cast<size_t>(size_of(format)));
  }
  bool padding_untouched() const {
    for (int64_t row = 0; row < kM; ++row) {
      for (int64_t i = kN * size_of(format); i < stride * size_of(format); ++i) {
        if (bytes[static_cast<size_t>(row * stride * size_of(format) + i)] != 0x5a) return false;
      }
    }
    return true;
  }
};

class GemmEpilogueTest : public ::testing::Test {
 protected:
  Operand a_{kM, kK, Format::kE4m3, 1, {.magnitude = 0.5}}, b_{kN, kK, Format::kE4m3, 2, {.magnitude = 0.5}};
  std::vector<float> bias_ = [] {
    std::vector<float> bias(kN);
    for (int64_t j = 0; j < kN; ++j) bias[static_cast<size_t>(j)] = 0.1f * static_cast<float>(j % 7 - 3);
    return bias;
  }();

  float accumulator(const std::vector<float>& plain, int64_t row, int64_t column) const {
    return plain[static_cast<size_t>(row * kN + column)];
  }
  void multiply(Matrix& output, const GemmEpilogue& epilogue) const {
    gemm({.a = a_.view(),
          .b = b_.view(),
          .m = kM,
          .n = kN,
          .k = kK,
          .output = output.bytes.data(),
          .output_format = output.format,
          .output_stride = output.stride,
          .epilogue = epilogue});
  }
  float run(Matrix& output, GemmEpilogue epilogue) const {
    float amax = -1;
    epilogue.amax = &amax;
    multiply(output, epilogue);
    return amax;
  }
  // Runs and compares each output, and the amax, with value(accumulator, row, column).
  template <class Value>
  void expect_bits(Matrix output, const GemmEpilogue& epilogue, Value value) const {
    const std::vector<float> plain = product(a_, b_, kM, kN, kK);
    const float amax = run(output, epilogue);
    float largest = 0;
    const bool fp8 = format::is_fp8(output.format);
    for (int64_t row = 0; row < kM; ++row) {
      for (int64_t column = 0; column < kN; ++column) {
        const float x = value(accumulator(plain, row, column), row, column);
        largest = std::max(largest, std::abs(x));
        const uint32_t code = encode_reference(output.format, fp8 ? x * (1 / *epilogue.scale) : x);
        ASSERT_EQ(output.code(row, column), code) << row << ", " << column << " of " << x;
      }
    }
    EXPECT_EQ(amax, largest);
    EXPECT_TRUE(output.padding_untouched());
  }
};

TEST_F(GemmEpilogueTest, EncodesEveryOutputFormat) {
  for (runtime::Isa isa : isas()) {
    runtime::ScopedIsa scope(isa);
    for (Format format : kOutputs) {
      SCOPED_TRACE(std::string(format::info(format).name) + " on " + std::string(runtime::name(isa)));
      expect_bits({format}, {.alpha = 0.375f, .scale = &kTwentieth},
                  [](float x, int64_t, int64_t) { return x * 0.375f; });
      expect_bits({format}, {.bias = bias_.data(), .scale = &kThousandth},
                  [&](float x, int64_t, int64_t j) { return x + bias_[static_cast<size_t>(j)]; });
    }
  }
}

TEST_F(GemmEpilogueTest, AppliesRowScalesThenColumnScales) {
  for (runtime::Isa isa : isas()) {
    runtime::ScopedIsa scope(isa);
    const std::vector<float> plain = product(a_, b_, kM, kN, kK);
    std::vector<float> rows(kM), columns(kN);
    for (size_t i = 0; i < rows.size(); ++i) rows[i] = 0.3f + static_cast<float>(i);
    for (size_t j = 0; j < columns.size(); ++j) columns[j] = 1.7f / static_cast<float>(j + 1);
    GemmOperand a = a_.view(), b = b_.view();
    a.scale = {.data = rows.data(), .block_rows = 1, .row_stride = 1};
    b.scale = {.data = columns.data(), .block_rows = 1, .row_stride = 1};
    std::vector<float> output(static_cast<size_t>(kM * kN));
    gemm({.a = a, .b = b, .m = kM, .n = kN, .k = kK, .output = output.data(), .output_stride = kN});
    for (int64_t i = 0; i < kM * kN; ++i) {
      const float row = rows[static_cast<size_t>(i / kN)], column = columns[static_cast<size_t>(i % kN)];
      ASSERT_EQ(output[static_cast<size_t>(i)], plain[static_cast<size_t>(i)] * row * column);
    }
  }
}

TEST_F(GemmEpilogueTest, GeluIsOfThePreActivationAsItIsKept) {
  for (runtime::Isa isa : isas()) {
    runtime::ScopedIsa scope(isa);
    for (Format format : kOutputs) {
      for (Format aux_format : {Format::kFp32, Format::kFp16, Format::kBf16}) {
        Matrix aux{aux_format, kN + 5};
        const GemmEpilogue epilogue = {.alpha = 0.25f,
                                       .bias = bias_.data(),
                                       .activation = GemmActivation::kGelu,
                                       .aux = aux.bytes.data(),
                                       .aux_format = aux_format,
                                       .aux_stride = aux.stride,
                                       .scale = &kThird};
        auto pre = [&](float x, int64_t j) { return x * 0.25f + bias_[static_cast<size_t>(j)]; };
        auto stored = [&](float x, int64_t j) {
          const uint32_t code = encode_reference(aux_format, pre(x, j));
          return static_cast<float>(decode_reference(aux_format, code));
        };
        expect_bits({format}, epilogue, [&](float x, int64_t, int64_t j) { return apply(gelu_of, stored(x, j)); });
        const std::vector<float> plain = product(a_, b_, kM, kN, kK);
        for (int64_t i = 0; i < kM; ++i) {
          for (int64_t j = 0; j < kN; ++j) {
            ASSERT_EQ(aux.code(i, j), encode_reference(aux_format, pre(accumulator(plain, i, j), j)));
          }
        }
        EXPECT_TRUE(aux.padding_untouched());
      }
    }
    expect_bits({Format::kBf16}, {.activation = GemmActivation::kGelu},
                [](float x, int64_t, int64_t) { return apply(gelu_of, x); });
  }
}

TEST_F(GemmEpilogueTest, DgeluMultipliesWithTheGradientAtAux) {
  for (runtime::Isa isa : isas()) {
    runtime::ScopedIsa scope(isa);
    for (Format format : kOutputs) {
      for (Format aux_format : {Format::kFp32, Format::kFp16, Format::kBf16}) {
        Matrix aux{aux_format, kN + 1};
        for (int64_t i = 0; i < kM; ++i) {
          for (int64_t j = 0; j < kN; ++j) aux.set(i, j, 0.05f * static_cast<float>((i * 7 + j * 3) % 160 - 80));
        }
        const GemmEpilogue epilogue = {.activation = GemmActivation::kDGelu,
                                       .aux = aux.bytes.data(),
                                       .aux_format = aux_format,
                                       .aux_stride = aux.stride,
                                       .scale = &kThird};
        expect_bits({format}, epilogue, [&](float x, int64_t i, int64_t j) {
          return x * apply(gelu_gradient_of, static_cast<float>(decode_reference(aux_format, aux.code(i, j))));
        });
      }
    }
  }
}

TEST_F(GemmEpilogueTest, AccumulateAddsToTheOutput) {
  for (runtime::Isa isa : isas()) {
    runtime::ScopedIsa scope(isa);
    for (Format format : {Format::kFp32, Format::kFp16, Format::kBf16}) {
      SCOPED_TRACE(std::string(format::info(format).name) + " on " + std::string(runtime::name(isa)));
      Matrix output{format};
      auto before = [](int64_t i, int64_t j) { return static_cast<float>(i) - 0.5f * static_cast<float>(j); };
      for (int64_t i = 0; i < kM; ++i) {
        for (int64_t j = 0; j < kN; ++j) output.set(i, j, before(i, j));
      }
      GemmEpilogue epilogue = {.alpha = 0.5f, .accumulate = true};
      expect_bits(output, epilogue, [&](float x, int64_t i, int64_t j) { return x * 0.5f + before(i, j); });
      // Without an amax most tiles take one pass.
      Matrix with_amax = output;
      run(with_amax, epilogue);
      multiply(output, epilogue);
      EXPECT_EQ(output.bytes, with_amax.bytes);
    }
  }
}

TEST_F(GemmEpilogueTest, ColumnSumIsOfTheValuesBeforeEncoding) {
  for (runtime::Isa isa : isas()) {
    runtime::ScopedIsa scope(isa);
    const std::vector<float> plain = product(a_, b_, kM, kN, kK);
    std::vector<float> sum(kN, std::numeric_limits<float>::quiet_NaN());
    Matrix output{Format::kE5m2};
    run(output, {.bias = bias_.data(), .column_sum = sum.data(), .scale = &kTen});
    for (int64_t j = 0; j < kN; ++j) {
      double exact = 0, absolute = 0;
      for (int64_t i = 0; i < kM; ++i) {
        const double x = static_cast<double>(accumulator(plain, i, j) + bias_[static_cast<size_t>(j)]);
        exact += x;
        absolute += std::abs(x);
      }
      EXPECT_PRED3(within, sum[static_cast<size_t>(j)], exact, kM * 0x1p-24 * absolute);
    }
    gemm({.a = a_.view(),
          .b = b_.view(),
          .m = 0,
          .n = kN,
          .k = kK,
          .output = output.bytes.data(),
          .output_stride = kN,
          .epilogue = {.column_sum = sum.data()}});
    EXPECT_EQ(sum, std::vector<float>(kN, 0.0f));
  }
}

TEST_F(GemmEpilogueTest, AmaxShowsWhatIsNotFinite) {
  for (runtime::Isa isa : isas()) {
    runtime::ScopedIsa scope(isa);
    Matrix output{Format::kE4m3};
    Operand a(kM, kK, Format::kE5m2, 1), b(kN, kK, Format::kE4m3, 2);
    auto amax_with = [&](float x) {
      a.set_code(kM - 1, 0, encode_reference(Format::kE5m2, x));
      b.set_code(kN - 1, 0, encode_reference(Format::kE4m3, 1.0f));
      for (int64_t j = 0; j < kN - 1; ++j) b.set_code(j, 0, encode_reference(Format::kE4m3, -1.0f));
      float amax = -1;
      gemm({.a = a.view(),
            .b = b.view(),
            .m = kM,
            .n = kN,
            .k = kK,
            .output = output.bytes.data(),
            .output_format = output.format,
            .output_stride = output.stride,
            .epilogue = {.amax = &amax}});
      return amax;
    };
    EXPECT_EQ(amax_with(std::numeric_limits<float>::infinity()), std::numeric_limits<float>::infinity());
    EXPECT_TRUE(std::isnan(amax_with(std::numeric_limits<float>::quiet_NaN())));
    EXPECT_TRUE(std::isfinite(amax_with(1.0f)));
  }
}

}  // namespace
}  // namespace plimsoll::kernels::testing::gemm_epilogue_test
