#include "plimsoll/app/checkpoint/inspect.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "plimsoll/app/error.h"
#include "plimsoll/io/checkpoint.h"
#include "plimsoll/io/testing.h"

namespace plimsoll::app {
namespace {

using format::Format;
constexpr float kInf = std::numeric_limits<float>::infinity();

at::Tensor values(std::initializer_list<float> list) {
  at::Tensor tensor = at::empty({static_cast<int64_t>(list.size())});
  std::copy(list.begin(), list.end(), tensor.mutable_data_ptr<float>());
  return tensor;
}

TEST(TensorStatistics, AreThoseOfTheDefinition) {
  const TensorStatistics statistics = statistics_of(values({3, -4, 0, -0.0f}));
  EXPECT_EQ(statistics.amax, 4);
  EXPECT_EQ(statistics.rms, 2.5);
  EXPECT_EQ(statistics.zeros, 2);
  EXPECT_EQ(statistics.non_finite, 0);
  EXPECT_EQ(statistics.headroom_bits(Format::kE4m3), std::log2(448.0 / 4));
}

TEST(TensorStatistics, NonFiniteValuesAreCountedAndShowInAmax) {
  EXPECT_TRUE(std::isinf(statistics_of(values({1, -kInf})).amax));
  const TensorStatistics statistics = statistics_of(values({NAN, 1, kInf, 2}));
  EXPECT_TRUE(std::isnan(statistics.amax));
  EXPECT_EQ(statistics.non_finite, 2);
  EXPECT_EQ(statistics.rms, std::sqrt(2.5));
  EXPECT_FALSE(statistics.headroom_bits(Format::kFp16));
}

TEST(TensorStatistics, EmptyAndZeroTensorsHaveNoHeadroom) {
  EXPECT_FALSE(statistics_of(at::empty({0})).headroom_bits(Format::kFp16));
  EXPECT_FALSE(statistics_of(at::zeros({3})).headroom_bits(Format::kFp16));
}

TEST(TensorStatistics, CoverEveryElementOfALargeTensor) {
  constexpr int64_t kSize = (int64_t{1} << 20) + 3;
  at::Tensor tensor = at::full({kSize}, 1.0);
  tensor[kSize - 1] = 7;
  const TensorStatistics statistics = statistics_of(tensor);
  EXPECT_EQ(statistics.amax, 7);
  EXPECT_EQ(statistics.count, kSize);
}

TEST(TensorStatistics, ReadEveryDtype) {
  for (const at::ScalarType dtype : {at::kDouble, at::kHalf, at::kBFloat16, at::kFloat8_e4m3fn, at::kFloat8_e5m2,
                                     at::kFloat8_e8m0fnu, at::kLong, at::kByte, at::kUInt32}) {
    EXPECT_EQ(statistics_of(values({4, 1}).to(dtype)).amax, 4) << c10::toString(dtype);
  }
}

TEST(TensorStatistics, IntegersHaveNoHeadroom) {
  EXPECT_EQ(statistics_of(values({4, 1}).to(at::kLong)).headroom_bits(format::Format::kE4m3), std::nullopt);
  EXPECT_TRUE(statistics_of(values({4, 1})).headroom_bits(format::Format::kE4m3).has_value());
}

TEST(Inspect, ReadsFilesCheckpointsAndRuns) {
  const io::TemporaryDirectory run;
  const auto step = io::save_checkpoint(
      run.path(),
      {.step = 1,
       .sections = {{"model", {{"w", at::arange(6, at::kFloat).view({2, 3})}}}, {"optimizer", {{"m", at::zeros({4})}}}},
       .state = {}});
  const std::vector<TensorReport> file = inspect(step / "model.safetensors");
  ASSERT_EQ(file.size(), 1u);
  EXPECT_EQ(file[0].name, "w");
  EXPECT_EQ(file[0].shape, (std::vector<int64_t>{2, 3}));
  for (const auto& directory : {step, run.path()}) {
    const std::vector<TensorReport> reports = inspect(directory);
    ASSERT_EQ(reports.size(), 2u);
    EXPECT_EQ(reports[0].name, "model/w");
    EXPECT_EQ(reports[1].name, "optimizer/m");
  }
}

TEST(Inspect, DirectoryWithoutTensorsIsAnError) {
  const io::TemporaryDirectory empty;
  EXPECT_THROW(inspect(empty.path()), Error);
}

TEST(Inspect, JsonHoldsWhatIsNoNumberAsText) {
  const nlohmann::json json =
      to_json({.name = "x", .dtype = "F32", .shape = {2}, .statistics = statistics_of(values({0, kInf}))});
  EXPECT_EQ(json.at("amax"), "inf");
  EXPECT_EQ(json.at("zeros"), 0.5);
  EXPECT_EQ(json.at("non_finite"), 0.5);
  EXPECT_TRUE(json.at("headroom_bits").at("e4m3").is_null());
}

}  // namespace
}  // namespace plimsoll::app
