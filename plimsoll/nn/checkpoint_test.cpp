#include "plimsoll/nn/checkpoint.h"

#include <ATen/autocast_mode.h>

#include "plimsoll/amp/autocast.h"
#include "plimsoll/nn/testing.h"

namespace plimsoll::nn {
namespace {

TEST(NnCheckpoint, FindsTheAutocastOfItsFirstRun) {
  const at::Tensor weight = torch::randn({8, 8}).requires_grad_(true), x = torch::randn({4, 8}).requires_grad_(true);
  std::vector<at::ScalarType> seen;
  const auto segment = [&](const std::vector<at::Tensor>& inputs) {
    std::vector<at::Tensor> outputs = {at::matmul(inputs[0], weight)};
    seen.push_back(outputs[0].scalar_type());
    return outputs;
  };
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const at::Tensor output = checkpoint(segment, {x}, {weight})[0];
  at::autocast::set_autocast_enabled(at::kCPU, false);
  output.sum().backward();
  EXPECT_EQ(seen, (std::vector{at::kBFloat16, at::kBFloat16}));
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
  EXPECT_TRUE(x.grad().defined() && weight.grad().defined());
}

TEST(NnCheckpoint, FindsThePrecisionTableOfItsFirstRun) {
  const at::Tensor start = torch::randn({8, 8}), x = torch::randn({4, 8});
  const auto gradient = [&](at::ScalarType dtype, bool checkpoints, bool backward_inside) {
    const at::Tensor weight = start.clone().requires_grad_(true);
    const auto segment = [&](const std::vector<at::Tensor>& inputs) {
      return std::vector{at::softmax(at::matmul(inputs[0], weight), 1).square()};  // softmax: fp32 in the table alone
    };
    std::optional<amp::Autocast> scope(std::in_place, at::kCPU, dtype);
    const at::Tensor output = checkpoints ? checkpoint(segment, {x}, {weight})[0] : segment({x})[0];
    if (!backward_inside) scope.reset();
    output.sum().backward();
    return weight.grad();
  };
  for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16}) {
    for (const bool inside : {false, true}) {
      EXPECT_TRUE(at::equal(gradient(dtype, true, inside), gradient(dtype, false, inside))) << dtype << inside;
    }
  }
  EXPECT_EQ(at::softmax(at::ones({2}, at::kHalf), 0).scalar_type(), at::kHalf);
}

TEST(NnCheckpoint, InputsMayBeUndefinedOrAskForNoGradient) {
  const at::Tensor x = torch::randn({3}).requires_grad_(true), y = torch::randn({3});
  const auto segment = [](const std::vector<at::Tensor>& in) {
    EXPECT_FALSE(in[1].defined());
    return std::vector{in[0] * in[2], in[2] * 2};
  };
  const std::vector<at::Tensor> outputs = checkpoint(segment, {x, {}, y}, {});
  (outputs[0] + outputs[1]).sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), y));
  EXPECT_FALSE(y.grad().defined());
}

TEST(NnCheckpoint, RunsOnceWithoutGradients) {
  int runs = 0;
  const auto segment = [&](const std::vector<at::Tensor>& in) {
    ++runs;
    return in;
  };
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(checkpoint(segment, {torch::ones({2}).requires_grad_(true)}, {})[0].grad_fn());
  EXPECT_EQ(runs, 1);
}

}  // namespace
}  // namespace plimsoll::nn
