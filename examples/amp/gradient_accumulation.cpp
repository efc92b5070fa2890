// Gradient accumulation: the loss scale stays the same for all parts of a batch; step and update follow the last part.
#include <torch/optim/adamw.h>

#include "examples/amp/problem.h"
#include "plimsoll/amp/autocast.h"
#include "plimsoll/amp/grad_scaler.h"

using namespace plimsoll;

int main() {
  constexpr int kParts = 4;
  problem::Data data;
  torch::nn::Sequential model = problem::model(1);
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(3e-3));
  amp::GradScaler scaler;
  std::vector<double> losses;
  double loss_of_step = 0;
  for (int part = 1; part <= 200 * kParts; ++part) {
    const problem::Batch batch = data.next(16);
    at::Tensor loss;
    {
      const amp::Autocast scope(at::kCPU, at::kHalf);
      loss = at::mse_loss(model->forward(batch.input), batch.target) / kParts;
    }
    scaler.scale(loss).backward();  // gradients add up, with the scale on them
    loss_of_step += loss.item<double>();
    if (part % kParts != 0) continue;
    // scaler.unscale_(optimizer) belongs here, where gradients are read or changed.
    scaler.step(optimizer);
    scaler.update();
    optimizer.zero_grad();
    losses.push_back(loss_of_step);
    loss_of_step = 0;
  }
  problem::report("4 parts a step", losses);
  return 0;
}
