// A model, its optimizer and its steps under a scaler, for the tests of GradScaler.
#pragma once

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "plimsoll/amp/grad_scaler.h"

namespace plimsoll::amp::scaler_test {

inline constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();

inline void expect_error(const std::function<void()>& call, const char* message) {
  EXPECT_THAT(call, ::testing::ThrowsMessage<c10::Error>(::testing::HasSubstr(message)));
}

struct Model {
  std::vector<at::Tensor> parameters;
  torch::optim::SGD optimizer;

  explicit Model(uint64_t seed) : parameters(drawn(seed)), optimizer(parameters, torch::optim::SGDOptions(0.1)) {}

  // As the loss sum(parameter * slope) would, times the scale.
  at::Tensor loss(const std::vector<at::Tensor>& slopes) const {
    at::Tensor sum = at::zeros({});
    for (size_t i = 0; i < parameters.size(); ++i) sum = sum + (parameters[i] * slopes[i]).sum();
    return sum;
  }

  // Backward of a loss whose slope is `first` at one parameter and 1 at the other.
  void run(GradScaler& scaler, float first = 1) {
    optimizer.zero_grad();
    const at::Tensor loss_now = loss({at::full({4, 5}, first), at::ones({7})});
    const bool one_scale = scaler.options().optimizers.empty();
    (one_scale ? scaler.scale(loss_now) : scaler.scale(loss_now, optimizer)).backward();
  }
  // A whole step; returns the scale after it.
  double step(GradScaler& scaler, float first = 1) {
    run(scaler, first);
    scaler.step(optimizer);
    scaler.update();
    return scaler.get_scale();
  }

  static std::vector<at::Tensor> drawn(uint64_t seed) {
    torch::manual_seed(seed);
    return {torch::randn({4, 5}).requires_grad_(), torch::randn({7}).requires_grad_()};
  }
};

inline std::vector<at::Tensor> slopes(std::mt19937& random) {
  std::vector<at::Tensor> result = {at::randn({4, 5}), at::randn({7})};
  if (const auto dice = random() % 40; dice < 2) result[dice].view(-1)[3].fill_(random() % 2 == 0 ? kInf : kNan);
  return result;
}

}  // namespace plimsoll::amp::scaler_test
