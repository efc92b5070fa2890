// A layer that trains under a precision controller which decides early, and what it reads.
#pragma once

#include <torch/csrc/autograd/autograd.h>

#include <memory>
#include <string>
#include <vector>

#include "plimsoll/ops/linear/linear.h"
#include "plimsoll/ops/scaling/precision_controller.h"
#include "plimsoll/ops/testing.h"

namespace plimsoll::ops::testing {

// Controller that measures each step and needs two votes.
inline std::shared_ptr<PrecisionController> eager(const std::string& ladder = "e4m3>bf16") {
  return std::make_shared<PrecisionController>(recipe::automatic_from_text(
      R"({"name": "auto", "ladder": ")" + ladder +
      R"(", "every": 1, "votes": 2, "ballots": 2, "quiet": 3, "window": 4, "mean_decay": 0})"));
}

struct Watched {
  std::shared_ptr<PrecisionController> controller = eager();
  std::shared_ptr<LinearState> state = std::make_shared<LinearState>("layer");
  at::Tensor weight = leaf(sample({96, 128}, 0.05));
  int64_t step = 0;
  std::shared_ptr<ScalingStep> scales = nullptr;
  std::shared_ptr<const AmaxReduction> reduction = nullptr;

  LinearScaling scaling() {
    SharedRecipe recipe = recipe_for(*controller, state);
    scales = std::make_shared<ScalingStep>(recipe);
    return {.recipe = recipe, .state = state, .step = scales, .precision = controller};
  }

  std::vector<PrecisionChange> train(const at::Tensor& x, const at::Tensor& grad) {
    const at::Tensor output = linear(leaf(x), weight, {}, scaling());
    scales->end_forward();
    torch::autograd::backward({output}, {grad.to(output.scalar_type())});
    return controller->end_step({.step = step++}, reduction.get());
  }

  int64_t rung(recipe::GemmKind gemm) const {
    return controller->layers().front().products[static_cast<size_t>(gemm)].state.rung;
  }
};

inline at::Tensor with_outlier(at::Tensor x) {
  x.select(1, 7).fill_(0x1p20);
  return x;
}

inline const at::Tensor& ordinary() {
  static const at::Tensor x = (at::manual_seed(1), sample({64, 128}));
  return x;
}
inline const at::Tensor& gradient() {
  static const at::Tensor x = (at::manual_seed(2), sample({64, 96}));
  return x;
}

}  // namespace plimsoll::ops::testing
