#include "plimsoll/app/gauge/gauge_measurement.h"

#include <ATen/ops/full.h>
#include <gmock/gmock.h>

namespace plimsoll::app {
namespace {

using ::testing::ElementsAre;

// Windows of so many tokens, each of them the window's index.
GaugeInputs inputs_of(const std::vector<int64_t>& sizes) {
  GaugeInputs inputs;
  for (const int64_t size : sizes) {
    inputs.windows.push_back(at::full({1, size}, static_cast<int64_t>(inputs.windows.size()), at::kLong));
    inputs.logits.push_back(inputs.windows.back());
  }
  return inputs;
}

std::vector<int64_t> indices_of(const GaugeInputs& inputs) {
  std::vector<int64_t> indices;
  for (const at::Tensor& window : inputs.windows) indices.push_back(window[0][0].item<int64_t>());
  return indices;
}

TEST(GaugeInputs, AreSpreadOverTheFile) {
  EXPECT_THAT(indices_of(inputs_of({4, 4, 4, 4, 4, 4}).spread(100)), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(indices_of(inputs_of({4, 4, 4, 4, 4, 4}).spread(12)), ElementsAre(0, 2, 4));
  EXPECT_THAT(indices_of(inputs_of({40, 4, 4}).spread(12)), ElementsAre(0));
}

TEST(GaugeInputs, ThatAreTooShortAreLeftOut) {
  EXPECT_THAT(indices_of(inputs_of({1, 4, 1, 4, 1}).spread(100, 2)), ElementsAre(1, 3));
  EXPECT_THAT(indices_of(inputs_of({1, 40, 1, 4}).spread(12, 2)), ElementsAre(1));
  EXPECT_TRUE(inputs_of({1, 1}).spread(12, 2).windows.empty());
}

}  // namespace
}  // namespace plimsoll::app
