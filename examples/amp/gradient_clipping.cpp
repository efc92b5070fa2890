// Gradient clipping in two ways: after unscale_, when gradients have their true size, and by step with max_norm, in
// the same pass.
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>

#include "examples/amp/problem.h"
#include "plimsoll/amp/autocast.h"
#include "plimsoll/amp/grad_scaler.h"

using namespace plimsoll;

namespace {

constexpr double kMaxNorm = 0.1;

std::vector<double> train_clipped(bool one_pass) {
  problem::Data data;
  torch::nn::Sequential model = problem::model(1);
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(3e-3));
  amp::GradScaler scaler;
  std::vector<double> losses;
  int clipped = 0;
  for (int step = 0; step < 200; ++step) {
    const problem::Batch batch = data.next();
    optimizer.zero_grad();
    at::Tensor loss;
    {
      const amp::Autocast scope(at::kCPU, at::kHalf);
      loss = at::mse_loss(model->forward(batch.input), batch.target);
    }
    scaler.scale(loss).backward();
    if (one_pass) {
      clipped += scaler.step(optimizer, {.max_norm = kMaxNorm}).clip_factor < 1;
    } else {
      scaler.unscale_(optimizer);
      clipped += torch::nn::utils::clip_grad_norm_(model->parameters(), kMaxNorm) > kMaxNorm;
      scaler.step(optimizer);
    }
    scaler.update();
    losses.push_back(loss.item<double>());
  }
  std::printf("%d of %zu steps had a gradient norm above %g\n", clipped, losses.size(), kMaxNorm);
  return losses;
}

}  // namespace

int main() {
  problem::report("unscale_ and clip_grad_norm_", train_clipped(false));
  problem::report("step with max_norm", train_clipped(true));
  return 0;
}
