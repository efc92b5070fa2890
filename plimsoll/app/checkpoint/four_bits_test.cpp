#include "plimsoll/app/checkpoint/four_bits.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "plimsoll/app/checkpoint/inspect.h"
#include "plimsoll/io/safetensors.h"
#include "plimsoll/io/testing.h"
#include "plimsoll/ops/linear/decode_codes.h"
#include "plimsoll/ops/linear/fp4_codes.h"

namespace plimsoll::app {
namespace four_bits_test {

using format::Fp4Scaling;

FourBitShares shares_of(const at::Tensor& matrix, Fp4Scaling scaling) {
  return four_bit_shares(matrix, statistics_of(matrix).amax, scaling).value();
}

void expect_shares(const FourBitShares& shares, double saturated, double flushed, double flushed_blocks) {
  EXPECT_EQ(shares.saturated, saturated);
  EXPECT_EQ(shares.flushed, flushed);
  EXPECT_EQ(shares.flushed_blocks, flushed_blocks);
}

TEST(FourBits, Nvfp4LosesWhatIsSmallInItsBlockAndBlocksBelowItsSmallestScale) {
  at::Tensor x = at::zeros({1, 64});
  x[0][0] = 2688;  // 6 * 448: the tensor's scale is 1, this block's 448
  x[0][1] = 112;   // a quarter of 448: halfway to 0.5, to even, which is zero
  x[0][2] = 113;
  x[0][16] = 6.2;  // its scale is 1, the E4M3 nearest to 6.2 / 6
  x[0][17] = 3;
  x[0][32] = 0x1p-11;  // its scale, 2^-11 / 6, is below half of E4M3's smallest number
  x[0][33] = -0x1p-12;
  expect_shares(shares_of(x, Fp4Scaling::kNvfp4), 1.0 / 7, 3.0 / 7, 1.0 / 3);  // of blocks that are not zeros
  expect_shares(shares_of(x.to(at::kBFloat16), Fp4Scaling::kNvfp4), 1.0 / 7, 3.0 / 7, 1.0 / 3);
}

TEST(FourBits, Mxfp4HasScalesForAnyBlock) {
  at::Tensor x = at::zeros({2, 40});  // the last block of a row is a short one
  x[0][0] = 6;                        // the scale 1
  x[0][1] = 0.25;                     // halfway, to zero
  x[0][2] = -0.26;
  x[0][35] = 0x1p-100;
  x[1][39] = 6.2;  // the scale 2
  x[1][38] = 0.5;
  expect_shares(shares_of(x, Fp4Scaling::kMxfp4), 0, 2.0 / 6, 0);
}

TEST(FourBits, RowsThatAreReadInPartsGiveTheSharesOfTheWhole) {
  constexpr int64_t kRows = 70'000;  // more than a million elements
  at::Tensor x = at::zeros({kRows, 16});
  x.select(1, 0).fill_(6.0);
  x.select(1, 1).fill_(0.1);
  x[kRows - 1][2] = 0.2;
  const double flushed = (kRows + 1.0) / (2.0 * kRows + 1);
  expect_shares(shares_of(x, Fp4Scaling::kMxfp4), 0, flushed, 0);
}

TEST(FourBits, OnlyFiniteMatricesOfValuesHaveShares) {
  const auto none = [](const at::Tensor& x) {
    return !four_bit_shares(x, statistics_of(x).amax, Fp4Scaling::kNvfp4).has_value();
  };
  EXPECT_TRUE(none(at::ones({4})));
  EXPECT_TRUE(none(at::ones({2, 2, 16})));
  EXPECT_TRUE(none(at::ones({2, 16}, at::kInt)));
  EXPECT_TRUE(none(at::ones({2, 16}, at::kDouble)));
  EXPECT_TRUE(none(at::ones({2, 16}).to(at::kFloat8_e4m3fn)));
  EXPECT_TRUE(none(at::full({2, 16}, std::numeric_limits<float>::infinity())));
  EXPECT_FALSE(none(at::ones({2, 16}, at::kHalf)));
  expect_shares(shares_of(at::zeros({2, 16}), Fp4Scaling::kNvfp4), 0, 0, 0);
  expect_shares(shares_of(at::zeros({0, 16}), Fp4Scaling::kMxfp4), 0, 0, 0);
  expect_shares(shares_of(at::zeros({3, 0}), Fp4Scaling::kMxfp4), 0, 0, 0);
}

// Tensors as `plimsoll quantize` packs a matrix, and the values that a product reads.
struct Packed {
  io::TensorMap tensors;
  at::Tensor values;
};

Packed packed(const at::Tensor& matrix, Fp4Scaling scaling) {
  const ops::Fp4Codes made = ops::fp4_codes_of({{.weight = matrix}}, scaling);
  Packed result{.tensors = {{"x.weight_packed", made.codes}}, .values = {}};
  ops::CodeSource source{.stored = {.codes = made.codes, .scale = made.scale}};
  if (scaling == Fp4Scaling::kNvfp4) {
    const float encode_scale = format::Nvfp4::encode_scale(ops::amax_of_sources({{.weight = matrix}}), scaling);
    result.tensors["x.weight_scale"] = made.scale.view(at::kFloat8_e4m3fn);
    result.tensors["x.weight_global_scale"] = at::full({1}, encode_scale);
    source.stored.tensor_scale = 1.0f / encode_scale;
  } else {
    result.tensors["x.weight_scale"] = made.scale;
  }
  const auto kind = scaling == Fp4Scaling::kNvfp4 ? ops::CodeKind::kNvfp4 : ops::CodeKind::kMxfp4;
  result.values = ops::decode_codes({source}, kind, at::kFloat);
  return result;
}

const TensorReport* find_report(const std::vector<TensorReport>& reports, const std::string& name) {
  for (const TensorReport& report : reports) {
    if (report.name == name) return &report;
  }
  return nullptr;
}

TEST(FourBits, PackedCodesAreReadAsTheValuesThatProductsRead) {
  at::manual_seed(1);
  at::Tensor x = at::randn({6, 96});
  x.slice(1, 32, 64).zero_();
  for (const Fp4Scaling scaling : {Fp4Scaling::kNvfp4, Fp4Scaling::kMxfp4}) {
    const Packed made = packed(x, scaling);
    const io::TemporaryDirectory directory;
    io::save_safetensors(directory.path() / "model.safetensors", made.tensors);
    const std::vector<TensorReport> reports = inspect(directory.path());
    EXPECT_EQ(reports.size(), made.tensors.size());
    const TensorReport* report = find_report(reports, "x.weight_packed");
    ASSERT_NE(report, nullptr);
    const bool is_nvfp4 = scaling == Fp4Scaling::kNvfp4;
    EXPECT_EQ(report->dtype, is_nvfp4 ? "NVFP4" : "MXFP4");
    EXPECT_EQ(report->shape, (std::vector<int64_t>{6, 96}));
    const TensorStatistics expected = statistics_of(made.values);
    // Decoding rounds to FP32 once where NVFP4 has two scales.
    EXPECT_NEAR(report->statistics.amax, expected.amax, expected.amax * 0x1p-23);
    EXPECT_NEAR(report->statistics.rms, expected.rms, expected.rms * 0x1p-23);
    EXPECT_EQ(report->statistics.zeros, expected.zeros);
    EXPECT_EQ(report->statistics.count, 6 * 96);
    EXPECT_TRUE(report->statistics.headroom_bits(format::Format::kFp16).has_value());
    EXPECT_EQ(report->nvfp4.has_value(), is_nvfp4);
    EXPECT_EQ(report->mxfp4.has_value(), !is_nvfp4);
    const FourBitShares shares = (is_nvfp4 ? report->nvfp4 : report->mxfp4).value();
    EXPECT_EQ(shares.flushed, static_cast<double>(expected.zeros) / (6 * 96));
    EXPECT_EQ(shares.flushed_blocks, 1.0 / 3);
    const at::Tensor codes = made.tensors.at("x.weight_packed");
    const int64_t largest =
        codes.bitwise_and(0x07).eq(0x07).sum().item<int64_t>() + codes.bitwise_and(0x70).eq(0x70).sum().item<int64_t>();
    EXPECT_GT(largest, 0);
    EXPECT_EQ(shares.saturated, static_cast<double>(largest) / (6 * 96));
  }
}

TEST(FourBits, BytesWithoutScalesOfALayoutStayBytes) {
  const Packed made = packed(at::ones({4, 64}), Fp4Scaling::kNvfp4);
  const auto dtype_with = [&](const std::string& name, const at::Tensor& other) {
    io::TensorMap tensors = made.tensors;
    tensors.erase(name);
    if (other.defined()) tensors.emplace(name, other);
    const io::TemporaryDirectory directory;
    io::save_safetensors(directory.path() / "model.safetensors", tensors);
    const std::vector<TensorReport> reports = inspect(directory.path());
    return find_report(reports, "x.weight_packed")->dtype;
  };
  EXPECT_EQ(dtype_with("y", at::ones({1})), "NVFP4");
  EXPECT_EQ(dtype_with("x.weight_scale", {}), "U8");
  EXPECT_EQ(dtype_with("x.weight_global_scale", {}), "U8");
  EXPECT_EQ(dtype_with("x.weight_global_scale", at::ones({2})), "U8");
  EXPECT_EQ(dtype_with("x.weight_scale", at::ones({4, 3}).to(at::kFloat8_e4m3fn)), "U8");
  EXPECT_EQ(dtype_with("x.weight_scale", at::ones({4})), "U8");
  EXPECT_EQ(dtype_with("x.weight_packed", at::ones({4, 32}, at::kInt)), "I32");
}

TEST(FourBits, DamagedScalesShowAsValuesThatAreNotFinite) {
  Packed made = packed(at::ones({4, 64}), Fp4Scaling::kMxfp4);
  made.tensors["x.weight_scale"][2][1] = 0xff;
  const io::TemporaryDirectory directory;
  io::save_safetensors(directory.path() / "model.safetensors", made.tensors);
  const std::vector<TensorReport> reports = inspect(directory.path());
  const TensorReport* report = find_report(reports, "x.weight_packed");
  EXPECT_EQ(report->statistics.non_finite, 32);
  EXPECT_TRUE(std::isnan(report->statistics.amax));
}

TEST(FourBits, CodesAndScalesMayBeInDifferentShards) {
  const Packed made = packed(at::ones({4, 64}), Fp4Scaling::kMxfp4);
  const io::TemporaryDirectory directory;
  std::ofstream(directory.path() / "config.json") << "{}";
  io::save_safetensors(directory.path() / "model-1.safetensors",
                       {{"x.weight_packed", made.tensors.at("x.weight_packed")}});
  io::save_safetensors(directory.path() / "model-2.safetensors",
                       {{"x.weight_scale", made.tensors.at("x.weight_scale")}});
  const std::vector<TensorReport> reports = inspect(directory.path());
  EXPECT_EQ(find_report(reports, "x.weight_packed")->dtype, "MXFP4");
}

}  // namespace four_bits_test
}  // namespace plimsoll::app
