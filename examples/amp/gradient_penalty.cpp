// Gradient penalty: gradients that enter the loss come from the scaled loss, and the program divides them by the scale.
#include <torch/csrc/autograd/autograd.h>
#include <torch/optim/adamw.h>

#include <utility>

#include "examples/amp/problem.h"
#include "plimsoll/amp/autocast.h"
#include "plimsoll/amp/grad_scaler.h"

using namespace plimsoll;

namespace {

constexpr double kWeight = 0.2;

// Losses, and the last norm of the gradients.
std::pair<std::vector<double>, double> train(double penalty_weight) {
  problem::Data data;
  torch::nn::Sequential model = problem::model(1);
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(3e-3));
  amp::GradScaler scaler;
  std::vector<double> losses;
  double last_norm = 0;
  for (int step = 0; step < 200; ++step) {
    const problem::Batch batch = data.next();
    optimizer.zero_grad();
    at::Tensor loss;
    {
      const amp::Autocast scope(at::kCPU, at::kHalf);
      loss = at::mse_loss(model->forward(batch.input), batch.target);
    }

    // The scale keeps these gradients from underflow in fp16. No optimizer owns them, so unscale_ does not divide them.
    const std::vector<at::Tensor> grads = torch::autograd::grad({scaler.scale(loss)}, model->parameters(), {},
                                                                /*retain_graph=*/true, /*create_graph=*/true);
    at::Tensor penalized, grad_norm;
    {
      const amp::Autocast scope(at::kCPU, at::kHalf);
      at::Tensor squares = at::zeros({});
      for (const at::Tensor& grad : grads) squares = squares + at::pow(grad / scaler.get_scale(), 2).sum();  // in fp32
      grad_norm = squares.sqrt();
      penalized = loss + penalty_weight * grad_norm;
    }
    scaler.scale(penalized).backward();
    scaler.step(optimizer);
    scaler.update();
    losses.push_back(loss.item<double>());
    last_norm = grad_norm.item<double>();
  }
  return {losses, last_norm};
}

}  // namespace

int main() {
  const auto [plain, plain_norm] = train(0);
  problem::report("without penalty", plain);
  const auto [penalized, penalized_norm] = train(kWeight);
  problem::report("with penalty", penalized);
  std::printf("gradient norm at the end: %.4f without, %.4f with penalty\n", plain_norm, penalized_norm);
  return 0;
}
