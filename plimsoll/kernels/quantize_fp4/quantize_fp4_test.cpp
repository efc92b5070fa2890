#include "plimsoll/kernels/quantize_fp4/quantize_fp4.h"

#include <gtest/gtest.h>

#include "plimsoll/kernels/quantize_fp4/quantize_fp4_oracle.h"

namespace plimsoll::kernels {
namespace {

using format::Format;
using format::Fp4Scaling;
using testing::Line;
using testing::Matrix;
using testing::rotated;

enum class Along { kRows, kColumns };

struct Options {
  Fp4Scaling scaling = Fp4Scaling::kNvfp4;
  Fp4Rotation rotation = {};
  Fp4Noise noise = {};
  const float* tensor_amax = nullptr;
};

constexpr uint8_t kFill = 0xee;

// Output of one direction, and what it has to be.
struct Output {
  Output(const Matrix& x, const Options& options, Along direction)
      : along(direction),
        lines(along == Along::kRows ? x.rows : x.cols),
        length(along == Along::kRows ? x.cols : x.rows),
        places(options.rotation.size == 0
                   ? length
                   : (length + options.rotation.size - 1) / options.rotation.size * options.rotation.size),
        block(format::fp4_block(options.scaling)),
        codes_stride((places + 1) / 2 + 5),
        scale_stride((places + block - 1) / block + 2),
        codes(static_cast<size_t>(lines * codes_stride + 1), kFill),
        scale(static_cast<size_t>(lines * scale_stride), kFill) {}

  Fp4Lines arguments(const Options& options) {
    return {.codes = codes.data(),
            .codes_stride = codes_stride,
            .scale = scale.data(),
            .scale_stride = scale_stride,
            .rotation = options.rotation,
            .noise = options.noise,
            .tensor_amax = options.tensor_amax,
            .tensor_scale = &tensor_scale,
            .amax = &amax};
  }

  bool operator==(const Output&) const = default;

  Along along;
  int64_t lines, length, places, block, codes_stride, scale_stride;
  std::vector<uint8_t> codes, scale;
  float tensor_scale = -1, amax = -1;
};

struct Both {
  Output rows, columns;
  int64_t non_finite_blocks = -1;
  bool operator==(const Both&) const = default;
};

Both quantize(const Matrix& x, const Options& options, bool by_row = true, bool by_column = true) {
  Both both = {Output(x, options, Along::kRows), Output(x, options, Along::kColumns)};
  QuantizeFp4 args = testing::quantization_of(x, options.scaling);
  args.non_finite_blocks = &both.non_finite_blocks;
  if (by_row) args.by_row = both.rows.arguments(options);
  if (by_column) args.by_column = both.columns.arguments(options);
  quantize_fp4(args);
  return both;
}

// Random number of element i of a line; of block i under MS-EDEN.
uint16_t random_of(const Output& output, const Options& options, int64_t cols, int64_t line, int64_t i) {
  const runtime::RoundingWords words{options.noise.seed, options.noise.step};
  const int64_t numbers = options.scaling == Fp4Scaling::kMsEden ? (output.length + 15) / 16 : output.length;
  const int64_t word = output.along == Along::kRows ? line * 16 * ((numbers + 31) / 32) + i / 2
                                                    : (i / 2) * 32 * ((cols + 31) / 32) + line;
  return static_cast<uint16_t>(words.word(static_cast<uint64_t>(word)) >> (16 * (i % 2)));
}

// Checks all bytes and returns the number of blocks that hold NaN or Inf.
void expect_output(const Matrix& x, const Options& options, const Output& output, int64_t& non_finite) {
  std::vector<Line> lines;
  float amax = 0;
  for (int64_t i = 0; i < output.lines; ++i) {
    const Line line = output.along == Along::kRows ? row_of_matrix(x, i) : column_of_matrix(x, i);
    lines.push_back(rotated(line, options.rotation));
    amax = testing::larger_amax(amax, testing::amax_of(lines.back()));
  }
  // Rotations of a NaN give any NaN, as the processor chooses.
  ASSERT_TRUE(std::bit_cast<uint32_t>(output.amax) == std::bit_cast<uint32_t>(amax) ||
              (std::isnan(output.amax) && std::isnan(amax)))
      << output.amax << " " << amax;
  const bool nvfp4 = format::is_nvfp4(options.scaling);
  const float used = options.tensor_amax == nullptr ? amax : *options.tensor_amax;
  const float encode_scale = nvfp4 ? format::Nvfp4::encode_scale(used, options.scaling) : 1.0f;
  ASSERT_TRUE(output.tensor_scale == 1.0f / encode_scale ||
              (std::isnan(output.tensor_scale) && std::isnan(encode_scale)));
  for (int64_t l = 0; l < output.lines; ++l) {
    const Line& line = lines[static_cast<size_t>(l)];
    const uint8_t* codes = &output.codes[static_cast<size_t>(l * output.codes_stride)];
    const uint8_t* scales = &output.scale[static_cast<size_t>(l * output.scale_stride)];
    std::vector<uint8_t> of_codes;
    for (int64_t begin = 0; begin < output.places; begin += output.block) {
      const auto first = static_cast<size_t>(begin), last = static_cast<size_t>(begin + output.block);
      non_finite += std::isfinite(testing::amax_of(line, first, last)) ? 0 : 1;
      of_codes.push_back(testing::scale_of({line}, first, options.scaling, encode_scale));
      const uint16_t random = random_of(output, options, x.cols, l, begin / output.block);
      ASSERT_EQ(scales[begin / output.block], testing::stored_scale_of(line, first, options.scaling, encode_scale,
                                                                       options.noise.stochastic ? &random : nullptr))
          << "line " << l << " block at " << begin;
    }
    for (int64_t i = 0; i < output.places; ++i) {
      const uint16_t random = random_of(output, options, x.cols, l, i);
      const bool stochastic = options.noise.stochastic && options.scaling != Fp4Scaling::kMsEden;
      const uint8_t scale = of_codes[static_cast<size_t>(i / output.block)];
      const uint8_t expected = testing::code_of(line[static_cast<size_t>(i)], scale, options.scaling, encode_scale,
                                                stochastic ? &random : nullptr);
      const uint8_t code = i % 2 == 0 ? codes[i / 2] & 15 : codes[i / 2] >> 4;
      ASSERT_EQ(code, expected) << "line " << l << " element " << i << ": " << line[static_cast<size_t>(i)];
    }
    if (output.places % 2 != 0) {
      ASSERT_EQ(codes[output.places / 2] >> 4, 0);
    }
    for (int64_t i = (output.places + 1) / 2; i < output.codes_stride; ++i) ASSERT_EQ(codes[i], kFill) << i;
    for (int64_t i = (output.places + output.block - 1) / output.block; i < output.scale_stride; ++i) {
      ASSERT_EQ(scales[i], kFill) << i;
    }
  }
}

void expect_both(const Matrix& x, const Options& options) {
  const Both both = quantize(x, options);
  int64_t non_finite = 0;
  ASSERT_NO_FATAL_FAILURE(expect_output(x, options, both.rows, non_finite)) << "by row";
  ASSERT_NO_FATAL_FAILURE(expect_output(x, options, both.columns, non_finite)) << "by column";
  ASSERT_EQ(both.non_finite_blocks, non_finite);
}

struct Shape {
  int64_t rows, cols;
};
constexpr Shape kShapes[] = {{0, 0},   {0, 7},   {7, 0},    {1, 1},    {1, 15},    {2, 16},  {3, 17},
                             {16, 31}, {32, 96}, {33, 511}, {47, 512}, {129, 513}, {261, 70}};

template <class Check>
void over_shapes(Format x_format, bool finite, Check check) {
  for (const runtime::Isa isa : testing::isas_present()) {
    const runtime::ScopedIsa scope(isa);
    for (const auto& [rows, cols] : kShapes) {
      const Matrix x(x_format, rows, cols, finite);
      for (const Fp4Scaling scaling : testing::kScalings) {
        SCOPED_TRACE(testing::name_of(x_format, rows, cols, scaling, isa));
        ASSERT_NO_FATAL_FAILURE(check(x, scaling));
      }
    }
  }
}

TEST(QuantizeFp4, FollowsTheDefinitionAlongRowsAndColumns) {
  for (const Format x_format : {Format::kFp32, Format::kBf16, Format::kFp16}) {
    over_shapes(x_format, true, [](const Matrix& x, Fp4Scaling scaling) { expect_both(x, {.scaling = scaling}); });
  }
}

TEST(QuantizeFp4, RoundsStochasticallyWithTheWordOfEachElement) {
  over_shapes(Format::kBf16, true, [](const Matrix& x, Fp4Scaling scaling) {
    expect_both(x, {.scaling = scaling, .noise = {.stochastic = true, .seed = 0x123456789abcu, .step = 17}});
  });
}

TEST(QuantizeFp4, RotatesInGroupsBeforeItQuantizes) {
  for (const int64_t size : {16, 128}) {
    for (const Format x_format : {Format::kFp32, Format::kBf16}) {
      over_shapes(x_format, true, [=](const Matrix& x, Fp4Scaling scaling) {
        expect_both(x, {.scaling = scaling,
                        .rotation = {.size = size, .seed = 99, .step = static_cast<uint64_t>(x.cols)},
                        .noise = {.stochastic = x.rows % 2 == 0, .seed = 5, .step = 3}});
      });
    }
  }
}

TEST(QuantizeFp4, BadValuesSpoilTheirBlocksAndAreCounted) {
  const float amax = 200.0f;
  over_shapes(Format::kFp32, false, [&](const Matrix& x, Fp4Scaling scaling) {
    expect_both(x, {.scaling = scaling, .tensor_amax = &amax});
    expect_both(x, {.scaling = scaling, .rotation = {.size = 16, .seed = 1, .step = 2}, .tensor_amax = &amax});
  });
}

TEST(QuantizeFp4, AnAmaxThatIsNotFiniteMakesEveryBlockNan) {
  for (const runtime::Isa isa : testing::isas_present()) {
    const runtime::ScopedIsa scope(isa);
    const Matrix x(Format::kBf16, 33, 95, false);
    expect_both(x, {});  // the amax that is found is NaN
    for (const float amax : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      expect_both(Matrix(Format::kBf16, 17, 40), {.tensor_amax = &amax});
    }
  }
}

// A rotation adds and subtracts two infinities of its 16 elements.
TEST(QuantizeFp4, AmaxOfARotationTellsNanFromInfinity) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const Options options = {.rotation = {.size = 16, .seed = 4, .step = 1}};
  for (const runtime::Isa isa : testing::isas_present()) {
    const runtime::ScopedIsa scope(isa);
    for (const Format x_format : {Format::kFp32, Format::kBf16, Format::kFp16}) {
      SCOPED_TRACE(testing::name_of(x_format, 48, 64, options.scaling, isa));
      Matrix x(x_format, 48, 64);
      EXPECT_TRUE(std::isfinite(quantize(x, options).columns.amax));
      x.set(17, 33, -kInfinity);
      EXPECT_EQ(quantize(x, options).columns.amax, kInfinity);
      x.set(17 + 9, 33, kInfinity);
      EXPECT_TRUE(std::isnan(quantize(x, options).columns.amax));
      expect_both(x, options);
    }
  }
}

TEST(QuantizeFp4, AnAmaxThatIsTooSmallOrTinyOrZeroSaturates) {
  for (const runtime::Isa isa : testing::isas_present()) {
    const runtime::ScopedIsa scope(isa);
    for (const float amax : {0.0f, 1e-3f, 1e-44f, 0x1p-126f, 3e38f}) {
      for (const Fp4Scaling scaling : testing::kScalings) {
        SCOPED_TRACE(testing::name_of(Format::kFp32, 19, 77, scaling, isa) + " amax " + std::to_string(amax));
        expect_both(Matrix(Format::kFp32, 19, 77), {.scaling = scaling, .tensor_amax = &amax});
      }
    }
  }
}

TEST(QuantizeFp4, EachDirectionAloneIsTheSameForAnyThreadCount) {
  const Matrix x(Format::kBf16, 300, 1100);
  const Fp4Noise noise = {.stochastic = true, .seed = 8};
  for (const Options& options :
       {Options{.rotation = {.size = 16, .seed = 4, .step = 1}, .noise = noise},
        Options{.scaling = Fp4Scaling::kMsEden, .rotation = {.size = 128, .seed = 4, .step = 1}, .noise = noise}}) {
    const Both expected = quantize(x, options);
    for (const int threads : {1, 2, 3, 7}) {
      const testing::ScopedThreads scope(threads);
      EXPECT_EQ(quantize(x, options), expected) << threads;
      EXPECT_EQ(quantize(x, options, true, false).rows, expected.rows) << threads;
      EXPECT_EQ(quantize(x, options, false, true).columns, expected.columns) << threads;
    }
  }
}

// Choices are those of exact arithmetic wherever FP32's sums leave no doubt.
TEST(QuantizeFp4, FourOverSixLeavesTheSmallerError) {
  Matrix x(Format::kFp32, 64, 512);
  std::mt19937 random(9);
  std::normal_distribution<float> normal;
  for (int64_t i = 0; i < x.rows * x.cols; ++i) x.set(i / x.cols, i % x.cols, normal(random));
  const Both both = quantize(x, {.scaling = Fp4Scaling::kFourOverSix});
  const Output& output = both.rows;
  const double encode_scale = format::Nvfp4::encode_scale(output.amax, Fp4Scaling::kFourOverSix);
  int fours = 0, sixes = 0;
  for (int64_t row = 0; row < x.rows; ++row) {
    const Line line = row_of_matrix(x, row);
    for (size_t begin = 0; begin < line.size(); begin += 16) {
      const float amax = testing::amax_of(line, begin, begin + 16);
      const auto error_of = [&](uint8_t scale) {
        double sum = 0;
        for (size_t i = begin; i < begin + 16; ++i) {
          const double s = format::E4m3::decode(scale), magnitude = std::fabs(double{line[i]} * encode_scale);
          double nearest = magnitude;  // the distance to 0
          for (const double value : {0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0}) {
            nearest = std::min(nearest, std::fabs(value * s - magnitude));
          }
          sum += nearest * nearest;
        }
        return sum;
      };
      const auto scale_to = [&](float target) {
        return format::Nvfp4::block_scale(amax, static_cast<float>(encode_scale), target);
      };
      const double to_6 = error_of(scale_to(6.0f)), to_4 = error_of(scale_to(4.0f));
      // Each of 16 terms passes at most 8 roundings of 2^-24 of the largest square in either sum.
      const double largest = double{amax} * encode_scale;
      if (std::fabs(to_6 - to_4) <= 16 * 8 * 0x1p-24 * largest * largest) continue;
      const uint8_t chosen = output.scale[static_cast<size_t>(row * output.scale_stride) + begin / 16];
      ASSERT_EQ(chosen, scale_to(to_4 < to_6 ? 4.0f : 6.0f)) << to_4 << " " << to_6;
      ++(to_4 < to_6 ? fours : sixes);
    }
  }
  EXPECT_GT(fours, 100);
  EXPECT_GT(sixes, 100);
}

TEST(QuantizeFp4, RotationKeepsProductsAndChangesWithTheStep) {
  // In the oracle, which the kernels match: both operands rotated, their product is that of before.
  std::mt19937 random(21);
  std::normal_distribution<float> normal;
  Line a, b;
  for (int i = 0; i < 256; ++i) {
    a.push_back(normal(random));
    b.push_back(normal(random));
  }
  for (const int64_t size : {16, 128}) {
    const Fp4Rotation rotation = {.size = size, .seed = 7, .step = 1}, next = {.size = size, .seed = 7, .step = 2};
    const Line x = rotated(a, rotation), y = rotated(b, rotation);
    double before = 0, after = 0, largest = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      before += double{a[i]} * b[i];
      after += double{x[i]} * y[i];
    }
    double squares_a = 0, squares_b = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      squares_a += double{a[i]} * a[i];
      squares_b += double{b[i]} * b[i];
      largest = std::max(largest, std::fabs(double{x[i]} - rotated(a, next)[i]));
    }
    // Stages and the first product round each operand by 2^-24 of its length.
    const double stages = std::log2(static_cast<double>(size)) + 2;
    EXPECT_NEAR(after, before, 2 * stages * 0x1p-24 * std::sqrt(squares_a * squares_b));
    EXPECT_GT(largest, 0.1);
  }
}

}  // namespace
}  // namespace plimsoll::kernels
