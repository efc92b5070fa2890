// Accumulation: the scale stays through all parts of a batch, so step and update come once, after the last.
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
    scaler.scale(loss).backward();  // adds up scaled gradients
    loss_of_step += loss.item<double>();
    if (part % kParts != 0) continue;
    // Here scaler.unscale_(optimizer), if the gradients are to be looked at or changed.
    scaler.step(optimizer);
    scaler.update();
    optimizer.zero_grad();
    losses.push_back(loss_of_step);
    loss_of_step = 0;
  }
  problem::report("4 parts a step", losses);
}
