// E2M1 codes with block scales: products against those of the same values in BF16, bit for bit, and against the exact sum.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "plimsoll/kernels/gemm/gemm_packed.h"
#include "plimsoll/kernels/gemm/gemm_test_support.h"
#include "plimsoll/kernels/testing.h"

namespace plimsoll::kernels::testing {
namespace {

constexpr Format kScaleFormats[] = {Format::kE4m3, Format::kE8m0};

int64_t block_of(Format scale_format) { return scale_format == Format::kE4m3 ? 16 : 32; }

double value_of_code(uint32_t code) {
  constexpr double kMagnitudes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  return (code & 8) != 0 ? -kMagnitudes[code & 7] : kMagnitudes[code & 7];
}

double value_of_scale(Format format, uint32_t code) {
  if (format == Format::kE4m3) return decode_reference(format, code);
  return code == 255 ? std::nan("") : std::ldexp(1.0, static_cast<int>(code) - 127);
}

enum class TensorScale { kNone, kOne, kOfRows };

struct Fp4Options {
  Format scale_format = Format::kE4m3;
  int64_t block_rows = 1;
  TensorScale tensor_scale = TensorScale::kOne;
  int64_t padding = 2;  // of rows, codes
};

// [rows, k] of random codes and scales, and the same values in BF16, whose scale is the tensor's.
class Fp4Operand {
 public:
  Fp4Operand(int64_t rows, int64_t k, uint32_t seed, Fp4Options options = {})
      : rows_(rows),
        k_(k),
        options_(options),
        stride_((k + 1) / 2 * 2 + options.padding),
        blocks_((k + block_of(options.scale_format) - 1) / block_of(options.scale_format)),
        codes_(static_cast<size_t>(rows * stride_ / 2 + 1)),
        scales_(static_cast<size_t>((rows / options.block_rows + 1) * blocks_)),
        tensor_(static_cast<size_t>(rows)) {
    std::mt19937 random(seed);
    for (uint8_t& pair : codes_) pair = static_cast<uint8_t>(random());
    // Around 1: 2^-3 to 2^3 and, of E4M3, all mantissas.
    for (uint8_t& scale : scales_) {
      scale = static_cast<uint8_t>(options.scale_format == Format::kE4m3 ? 32 + random() % 48 : 124 + random() % 7);
    }
    for (float& scale : tensor_) scale = static_cast<float>(1 + random() % 1000) / 900.0f;
  }

  void set_code(int64_t row, int64_t index, uint32_t code) {
    uint8_t& pair = codes_[byte(row, index)];
    pair = static_cast<uint8_t>(index % 2 == 0 ? (pair & 0xf0u) | code : (pair & 0x0fu) | code << 4);
  }
  void set_scale(int64_t block_row, int64_t block, uint32_t code) {
    scales_[static_cast<size_t>(block_row * blocks_ + block)] = static_cast<uint8_t>(code);
  }
  void set_tensor_scale(float scale) { std::fill(tensor_.begin(), tensor_.end(), scale); }

  // Code times block scale.
  double value(int64_t row, int64_t index) const {
    const uint32_t pair = codes_[byte(row, index)];
    const int64_t block = index / block_of(options_.scale_format);
    const uint32_t scale = scales_[static_cast<size_t>(row / options_.block_rows * blocks_ + block)];
    return value_of_code(index % 2 == 0 ? pair & 15 : pair >> 4) * value_of_scale(options_.scale_format, scale);
  }
  double tensor_scale(int64_t row) const {
    if (options_.tensor_scale == TensorScale::kNone) return 1;
    return tensor_[static_cast<size_t>(options_.tensor_scale == TensorScale::kOfRows ? row : 0)];
  }

  GemmOperand view() const {
    const bool has_tensor_scale = options_.tensor_scale != TensorScale::kNone;
    return {.data = codes_.data() + 1,
            .format = Format::kE2m1,
            .row_stride = stride_,
            .scale = {.data = scales_.data(),
                      .format = options_.scale_format,
                      .block_rows = options_.block_rows,
                      .block_cols = block_of(options_.scale_format),
                      .row_stride = blocks_,
                      .col_stride = 1,
                      .tensor = has_tensor_scale ? tensor_.data() : nullptr,
                      .tensor_row_stride = options_.tensor_scale == TensorScale::kOfRows ? 1 : 0}};
  }
  GemmOperand bf16_view() {
    bf16_.clear();
    for (int64_t i = 0; i < rows_ * k_; ++i) {
      bf16_.push_back(
          static_cast<uint16_t>(encode_reference(Format::kBf16, static_cast<float>(value(i / k_, i % k_)))));
    }
    const bool of_rows = options_.tensor_scale == TensorScale::kOfRows;
    return {.data = bf16_.data(),
            .format = Format::kBf16,
            .row_stride = k_,
            .scale = {.data = options_.tensor_scale == TensorScale::kNone ? nullptr : tensor_.data(),
                      .block_rows = of_rows ? 1 : 0,
                      .row_stride = of_rows ? 1 : 0}};
  }

 private:
  size_t byte(int64_t row, int64_t index) const { return static_cast<size_t>(1 + (row * stride_ + index) / 2); }

  int64_t rows_, k_;
  Fp4Options options_;
  int64_t stride_, blocks_;
  std::vector<uint8_t> codes_, scales_;
  std::vector<float> tensor_;
  std::vector<uint16_t> bf16_;
};

struct Sizes {
  int64_t m, n, k;
};

std::vector<float> multiplied(const GemmOperand& a, const GemmOperand& b, Sizes sizes, GemmEpilogue epilogue = {},
                              const void* packed_b = nullptr) {
  std::vector<float> output(static_cast<size_t>(sizes.m * sizes.n), -1.0f);
  gemm({.a = a,
        .b = b,
        .m = sizes.m,
        .n = sizes.n,
        .k = sizes.k,
        .output = output.data(),
        .output_stride = sizes.n,
        .epilogue = epilogue,
        .packed_b = packed_b});
  return output;
}

std::vector<char> packed_of(const GemmOperand& b, int64_t n, int64_t k) {
  const size_t bytes = gemm_packed_b_bytes(b, n, k);
  std::vector<char> packed(bytes + 1, 'g');
  gemm_pack_b(b, n, k, packed.data());
  EXPECT_EQ(packed[bytes], 'g');
  return packed;
}

// Packed operands are read neither as codes nor as block scales.
GemmOperand unread(GemmOperand operand) {
  operand.data = operand.scale.data = nullptr;
  return operand;
}

// Rows of the identity select elements of B.
TEST(GemmFp4, EveryCodeUnderEveryScaleCountsAsItsValue) {
  for (runtime::Isa isa : isas()) {
    runtime::ScopedIsa scope(isa);
    for (Format scale_format : kScaleFormats) {
      const int64_t k = block_of(scale_format), n = 256;
      Fp4Operand b(n, k, 1, {.scale_format = scale_format, .tensor_scale = TensorScale::kNone});
      Operand identity(k, k, Format::kBf16, 1);
      for (int64_t i = 0; i < k * k; ++i) identity.set_code(i / k, i % k, i / k == i % k ? 0x3f80 : 0);
      for (int64_t row = 0; row < n; ++row) {
        b.set_scale(row, 0, static_cast<uint32_t>(row));
        for (int64_t i = 0; i < k; ++i) b.set_code(row, i, static_cast<uint32_t>(i) % 16);
      }
      const std::vector<char> packed = packed_of(b.view(), n, k);
      for (int64_t rows : {int64_t{1}, int64_t{2}, int64_t{5}, int64_t{9}, k}) {
        for (bool is_packed : {false, true}) {
          const std::vector<float> output = multiplied(identity.view(), is_packed ? unread(b.view()) : b.view(),
                                                       {rows, n, k}, {}, is_packed ? packed.data() : nullptr);
          for (int64_t i = 0; i < rows * n; ++i) {
            const float actual = output[static_cast<size_t>(i)];
            const double expected = b.value(i % n, i / n);
            // 6 * 2^126 is Inf, which meets zeros in the sum.
            const bool is_nan = std::isnan(expected) || (scale_format == Format::kE8m0 && i % n >= 253);
            const double lost = std::fabs(expected) < 0x1p-126 ? std::fabs(expected) : 0;  // VDPBF16PS, TDPBF16PS
            ASSERT_PRED3(within, actual, is_nan ? std::nan("") : expected, lost)
                << "scale " << i % n << " element " << i / n << " of " << rows << (is_packed ? " packed" : "") << " on "
                << runtime::name(isa);
          }
        }
      }
    }
  }
}

void expect_bits_of_bf16(const GemmOperand& a, const GemmOperand& a_values, Fp4Operand& b, Sizes sizes,
                         const std::string& what) {
  const std::vector<float> expected = multiplied(a_values, b.bf16_view(), sizes, {.alpha = 0.75f});
  EXPECT_EQ(multiplied(a, b.view(), sizes, {.alpha = 0.75f}), expected) << what;
  const std::vector<char> packed = packed_of(b.view(), sizes.n, sizes.k);
  EXPECT_EQ(multiplied(a, unread(b.view()), sizes, {.alpha = 0.75f}, packed.data()), expected) << what << " packed";
}

TEST(GemmFp4, HasTheBitsOfItsValuesInBf16) {
  for (runtime::Isa isa : isas()) {
    runtime::ScopedIsa scope(isa);
    for (Format scale_format : kScaleFormats) {
      for (const int64_t k : {1, 7, 15, 16, 63, 64, 65, 129, 1031}) {
        Fp4Operand b(177, k, 2, {.scale_format = scale_format, .tensor_scale = TensorScale::kOfRows});
        for (Format a_format : kOperandFormats) {
          const Operand a(180, k, a_format, 1);
          for (const int64_t m : {1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 14, 16, 17, 25, 40, 180}) {
            if (a_format != Format::kBf16 && m % 5 != 0) continue;
            expect_bits_of_bf16(a.view(), a.view(), b, {m, 177, k}, describe(a_format, scale_format, m, 177, k, isa));
          }
        }
      }
    }
  }
}

TEST(GemmFp4, HasTheBitsOfBf16WhereBothOperandsAreCodes) {
  for (runtime::Isa isa : isas()) {
    runtime::ScopedIsa scope(isa);
    for (Format of_a : kScaleFormats) {
      for (Format of_b : kScaleFormats) {
        for (const int64_t block_rows : {1, 16}) {
          for (const Sizes& sizes : {Sizes{3, 70, 131}, {65, 33, 600}, {230, 170, 64}}) {
            Fp4Operand a(sizes.m, sizes.k, 1, {.scale_format = of_a, .block_rows = block_rows});
            Fp4Operand b(sizes.n, sizes.k, 2,
                         {.scale_format = of_b, .block_rows = block_rows, .tensor_scale = TensorScale::kOne});
            expect_bits_of_bf16(a.view(), a.bf16_view(), b, sizes,
                                describe(of_a, of_b, sizes.m, sizes.n, sizes.k, isa));
          }
        }
      }
    }
  }
}

TEST(GemmFp4, IsWithinTheBoundOfTheExactSum) {
  const Sizes sizes = {29, 45, 200};
  for (runtime::Isa isa : isas()) {
    runtime::ScopedIsa scope(isa);
    for (Format scale_format : kScaleFormats) {
      const Operand a(sizes.m, sizes.k, Format::kBf16, 1);
      const Fp4Operand b(sizes.n, sizes.k, 2, {.scale_format = scale_format, .tensor_scale = TensorScale::kOfRows});
      const std::vector<float> output = multiplied(a.view(), b.view(), sizes);
      for (int64_t i = 0; i < sizes.m * sizes.n; ++i) {
        const int64_t row = i / sizes.n, column = i % sizes.n;
        double sum = 0, absolute = 0;
        for (int64_t l = 0; l < sizes.k; ++l) {
          const double term = a.value(row, l) * b.value(column, l) * b.tensor_scale(column);
          sum += term;
          absolute += std::fabs(term);
        }
        EXPECT_PRED3(within, output[static_cast<size_t>(i)], sum, gemm_error_bound(sizes.k, absolute, 64.0))
            << runtime::name(isa);
      }
    }
  }
}

TEST(GemmFp4, BitsDoNotDependOnThreadsOrOnTheColumnsBesideThem) {
  const Sizes sizes = {205, 170, 700};
  for (runtime::Isa isa : isas()) {
    runtime::ScopedIsa scope(isa);
    for (Format scale_format : kScaleFormats) {
      for (const int64_t m : {int64_t{1}, int64_t{7}, int64_t{60}, sizes.m}) {
        const Sizes part = {m, sizes.n, sizes.k};
        const Operand a(m, sizes.k, Format::kBf16, 1);
        const Fp4Operand b(sizes.n, sizes.k, 2, {.scale_format = scale_format});
        std::vector<float> expected;
        for (int threads : {1, 2, 3, 7}) {
          ScopedThreads scoped(threads);
          const std::vector<char> packed = packed_of(b.view(), sizes.n, sizes.k);
          const std::vector<float> output = multiplied(a.view(), unread(b.view()), part, {}, packed.data());
          if (threads == 1) expected = output;
          EXPECT_EQ(output, expected) << threads << " threads on " << runtime::name(isa);
          EXPECT_EQ(multiplied(a.view(), b.view(), part), expected) << threads << " threads on " << runtime::name(isa);
          std::vector<float> parts(static_cast<size_t>(m * sizes.n));
          for (int64_t begin = 0; begin < sizes.n; begin += 2 * kPackedColumns) {
            gemm({.a = a.view(),
                  .b = unread(b.view()),
                  .m = m,
                  .n = std::min(sizes.n - begin, 2 * kPackedColumns),
                  .k = sizes.k,
                  .output = parts.data() + begin,
                  .output_stride = sizes.n,
                  .packed_b = gemm_packed_from(packed.data(), unread(b.view()), sizes.k, begin)});
          }
          EXPECT_EQ(parts, expected) << threads << " threads on " << runtime::name(isa);
        }
      }
    }
  }
}

TEST(GemmFp4, NanScaleMakesItsBlockNan) {
  const Sizes sizes = {19, 70, 200};
  for (runtime::Isa isa : isas()) {
    runtime::ScopedIsa scope(isa);
    for (Format scale_format : kScaleFormats) {
      const Operand a(sizes.m, sizes.k, Format::kBf16, 1);
      Fp4Operand b(sizes.n, sizes.k, 2, {.scale_format = scale_format});
      const uint32_t nan = scale_format == Format::kE4m3 ? 0x7f : 0xff;
      b.set_scale(33, 0, nan);
      b.set_scale(66, 200 / block_of(scale_format), nan);  // the last, which is shorter
      const std::vector<char> packed = packed_of(b.view(), sizes.n, sizes.k);
      for (int64_t rows : {int64_t{1}, int64_t{3}, sizes.m}) {
        for (bool is_packed : {false, true}) {
          const std::vector<float> output =
              multiplied(a.view(), is_packed ? unread(b.view()) : b.view(), {rows, sizes.n, sizes.k}, {},
                         is_packed ? packed.data() : nullptr);
          for (int64_t i = 0; i < rows * sizes.n; ++i) {
            ASSERT_EQ(std::isnan(output[static_cast<size_t>(i)]), i % sizes.n == 33 || i % sizes.n == 66)
                << i << " on " << runtime::name(isa);
          }
        }
      }
    }
  }
}

// Values of 1e37 times codes whose scale, one a row, is small: a gradient of 32 tokens or fewer.
TEST(GemmFp4, LargeScalesTimesSmallScalesOfRowsGiveTheBitsOfOrdinaryOnes) {
  constexpr int kLarge = 120, kSmall = -100;
  for (runtime::Isa isa : isas()) {
    runtime::ScopedIsa scope(isa);
    for (const Format format : {Format::kE4m3, Format::kE5m2}) {
      for (const Layout layout : {Layout::kKContiguous, Layout::kRowContiguous}) {
        for (const int64_t k : {1, 2, 3, 17, 31, 32}) {
          for (const int64_t rows : {int64_t{1}, int64_t{5}, int64_t{40}, int64_t{230}}) {
            const int64_t codes = 170;
            Fp4Operand values(codes, k, 2, {.scale_format = Format::kE8m0, .tensor_scale = TensorScale::kNone});
            Operand gradient(rows, k, format, 1, {.layout = layout, .magnitude = 16});
            gradient.add_scales(1, 32, Format::kE8m0, 3);
            const auto products = [&](int large, int small) {
              for (int64_t i = 0; i < codes; ++i) values.set_scale(i, 0, static_cast<uint32_t>(127 + large));
              for (int64_t i = 0; i < rows; ++i) gradient.set_scale_code(i, 0, static_cast<uint32_t>(127 + small));
              std::vector<float> both = multiplied(gradient.view(), values.view(), {rows, codes, k});
              const std::vector<float> other = multiplied(values.view(), gradient.view(), {codes, rows, k});
              both.insert(both.end(), other.begin(), other.end());
              return both;
            };
            std::vector<float> expected = products(0, 0);
            for (float& x : expected) x = std::ldexp(x, kLarge + kSmall);
            EXPECT_EQ(products(kLarge, kSmall), expected) << describe(format, Format::kE2m1, rows, codes, k, isa)
                                                          << (layout == Layout::kKContiguous ? " k" : " rows");
          }
        }
      }
    }
  }
}

// Tensor scales far from 1 whose product is ordinary: a power of two moved from one to the other changes no bit.
TEST(GemmFp4, FarTensorScalesGiveTheBitsOfOrdinaryOnes) {
  const Sizes sizes = {21, 40, 130};
  for (runtime::Isa isa : isas()) {
    runtime::ScopedIsa scope(isa);
    Fp4Operand a(sizes.m, sizes.k, 1), b(sizes.n, sizes.k, 2);
    a.set_tensor_scale(0.8f);
    b.set_tensor_scale(0.3f);
    const std::vector<float> expected = multiplied(a.view(), b.view(), sizes);
    for (const int shift : {-120, -90, 60, 120}) {
      a.set_tensor_scale(std::ldexp(0.8f, shift));
      b.set_tensor_scale(std::ldexp(0.3f, -shift));
      EXPECT_EQ(multiplied(a.view(), b.view(), sizes), expected) << shift << " on " << runtime::name(isa);
    }
  }
}

TEST(GemmFp4, PackedTakesAnEighthOfTheBytesOfFp32AndItsScales) {
  for (runtime::Isa isa : isas()) {
    runtime::ScopedIsa scope(isa);
    const Fp4Operand nvfp4(64, 192, 1), mxfp4(64, 192, 1, {.scale_format = Format::kE8m0});
    EXPECT_EQ(gemm_packed_b_bytes(nvfp4.view(), 64, 192), 64u * 192u * 9u / 16u);
    EXPECT_EQ(gemm_packed_b_bytes(mxfp4.view(), 64, 192), 64u * 192u * 17u / 32u);
  }
}

TEST(GemmFp4, EmptySumsAreZeroAndEmptyOutputsAreLeftAlone) {
  for (runtime::Isa isa : isas()) {
    runtime::ScopedIsa scope(isa);
    const Operand a(3, 0, Format::kBf16, 1);
    const Fp4Operand b(40, 0, 2);
    EXPECT_EQ(multiplied(a.view(), b.view(), {3, 40, 0}), std::vector<float>(120, 0.0f));
    EXPECT_TRUE(multiplied(a.view(), b.view(), {0, 40, 0}).empty());
  }
}

}  // namespace
}  // namespace plimsoll::kernels::testing
