#include "plimsoll/ops/tensor/quantize.h"

#include <c10/util/Exception.h>

#include "plimsoll/format/codec.h"
#include "plimsoll/ops/testing.h"

namespace plimsoll::ops {
namespace {

using format::Format;
using recipe::Granularity;
using testing::sample;

// The value of element (row, col) by the definition: the amax of its block, its scale, one rounding.
double oracle(const at::Tensor& x, const QuantizeOptions& options, int64_t row, int64_t col) {
  const Granularity blocks = options.granularity;
  const auto value = [&](int64_t i, int64_t j) { return x.const_data_ptr<float>()[i * x.size(1) + j]; };
  const int64_t block_rows = blocks.block_rows == 0 ? x.size(0) : blocks.block_rows;
  const int64_t block_cols = blocks.block_cols == 0 ? x.size(1) : blocks.block_cols;
  const int64_t top = row / block_rows * block_rows, left = col / block_cols * block_cols;
  float amax = 0;
  for (int64_t i = top; i < std::min(top + block_rows, x.size(0)); ++i) {
    for (int64_t j = left; j < std::min(left + block_cols, x.size(1)); ++j) {
      amax = std::max(amax, std::fabs(value(i, j)));
    }
  }
  float scale = options.scale.defined() ? options.scale.read_on_host()
                                        : std::max(amax / format::max_finite(options.format), 0x1p-126f);
  if (options.power_of_two || options.scale_format == Format::kE8m0) scale = std::exp2(std::ceil(std::log2(scale)));
  const float scaled = value(row, col) * (1.0f / scale);
  const uint32_t code = format::encode(options.format, scaled);
  return double{scale} * double{format::decode(options.format, code)};
}

TEST(Quantize, EveryGranularityIsTheDefinition) {
  at::manual_seed(1);
  const at::Tensor x = sample({19, 133});
  const QuantizeOptions cases[] = {
      {.scale = ScaleRef::of(0.25f)},
      {.format = Format::kE5m2, .scale = ScaleRef::of(0x1p-14f)},
      {},
      {.power_of_two = true},
      {.granularity = recipe::kPerRow},
      {.granularity = {0, 1}},
      {.granularity = recipe::kBlock1x128, .power_of_two = true},
      {.granularity = {128, 1}},
      {.granularity = recipe::kBlock128x128},
      {.format = Format::kE5m2, .granularity = recipe::kMxBlock, .scale_format = Format::kE8m0},
      {.granularity = {32, 1}, .scale_format = Format::kE8m0},
  };
  for (const QuantizeOptions& options : cases) {
    const Quantized got = quantize(x, options);
    EXPECT_EQ(got.amax.read_on_host(), x.abs().max().item<float>());
    const at::Tensor values = dequantize(got.tensor, at::kFloat);
    for (int64_t row = 0; row < x.size(0); row += 3) {
      for (int64_t col = 0; col < x.size(1); col += 7) {
        // The product with the scale rounds once.
        const double expected = oracle(x, options, row, col);
        EXPECT_NEAR(double{values.const_data_ptr<float>()[row * x.size(1) + col]}, expected,
                    std::fabs(expected) * 0x1p-24);
      }
    }
  }
}

TEST(Quantize, StridesAndDtypesGiveTheSameCodes) {
  at::manual_seed(2);
  const at::Tensor x = sample({24, 40});
  const at::Tensor expected = quantize(x, {}).tensor.data;
  const at::Tensor wide = sample({24, 90});
  wide.slice(1, 25, 65).copy_(x);
  for (const at::Tensor& same : {wide.slice(1, 25, 65), x.t().contiguous().t(), x.to(at::kBFloat16), x.to(at::kHalf)}) {
    at::Tensor column_sums;
    testing::expect_equal(quantize(same, {}, &column_sums).tensor.data, expected, "codes");
    testing::expect_equal(column_sums, column_sum(x), "column sums");
  }
  EXPECT_EQ(quantize(x.slice(0, 0, 1).expand({24, 40}), {}).tensor.data[23][7].item<int>(),
            quantize(x.slice(0, 0, 1), {}).tensor.data[0][7].item<int>());
}

TEST(Quantize, AnythingNotFiniteShowsInTheAmax) {
  at::Tensor x = sample({5, 70});
  x[2][3] = -INFINITY;
  EXPECT_EQ(quantize(x, {.scale = ScaleRef::of(1.0f)}).amax.read_on_host(), INFINITY);
  EXPECT_EQ(quantize(x, {.granularity = recipe::kMxBlock, .scale_format = Format::kE8m0}).amax.read_on_host(),
            INFINITY);
  x[4][69] = NAN;
  EXPECT_TRUE(std::isnan(quantize(x, {.scale = ScaleRef::of(1.0f)}).amax.read_on_host()));
  EXPECT_TRUE(std::isnan(ops::amax(x)));
}

// torch fills new memory with NaN while this exists, so that what is never written is seen.
struct NewMemoryIsNan {
  NewMemoryIsNan() { at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true); }
  ~NewMemoryIsNan() { at::globalContext().setDeterministicAlgorithms(false, false); }
};

TEST(Quantize, EmptyTensorsHaveEmptyCodesAndFiniteScales) {
  const NewMemoryIsNan nan;
  for (const Granularity granularity : {recipe::kPerTensor, recipe::kPerRow, Granularity{0, 1}, recipe::kMxBlock}) {
    for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{0, 5}, std::vector<int64_t>{5, 0}}) {
      const Quantized got = quantize(at::empty(sizes), {.granularity = granularity});
      EXPECT_EQ(got.tensor.data.sizes(), at::IntArrayRef(sizes));
      EXPECT_TRUE(at::isfinite(got.tensor.scale).all().item<bool>());
      EXPECT_EQ(got.amax.read_on_host(), 0);
    }
  }
}

TEST(Quantize, RefusesWhatIsNoMatrixOrNoCode) {
  EXPECT_THROW(quantize(sample({2, 3, 4}), {}), c10::Error);
  EXPECT_THROW(quantize(sample({2, 3}), {.format = Format::kBf16}), c10::Error);
  EXPECT_THROW(quantize(sample({2, 3}), {.granularity = recipe::kPerRow, .scale = ScaleRef::of(1.0f)}), c10::Error);
  EXPECT_THROW(quantize(sample({2, 3}).to(at::kDouble), {}), c10::Error);
}

}  // namespace
}  // namespace plimsoll::ops
