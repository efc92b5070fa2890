// Several models, losses and optimizers: scale each loss, step each optimizer, update once.
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "examples/amp/problem.h"
#include "plimsoll/amp/autocast.h"
#include "plimsoll/amp/grad_scaler.h"

using namespace plimsoll;

int main() {
  problem::Data data;
  torch::nn::Sequential model0 = problem::model(1), model1 = problem::model(2);
  torch::optim::AdamW optimizer0(model0->parameters(), torch::optim::AdamWOptions(3e-3));
  torch::optim::SGD optimizer1(model1->parameters(), torch::optim::SGDOptions(0.02));
  amp::GradScaler scaler({.init_scale = 0x1p24});  // too large: steps are skipped until it fits
  std::vector<double> losses;
  int skipped0 = 0, skipped1 = 0;
  for (int step = 0; step < 300; ++step) {
    const problem::Batch batch = data.next();
    optimizer0.zero_grad();
    optimizer1.zero_grad();
    at::Tensor loss0, loss1;
    {
      const amp::Autocast scope(at::kCPU, at::kHalf);
      const at::Tensor output0 = model0->forward(batch.input), output1 = model1->forward(batch.input);
      loss0 = at::mse_loss(2 * output0 + 3 * output1, batch.target);
      loss1 = at::mse_loss(3 * output0 - 5 * output1, batch.target);
    }
    scaler.scale(loss0).backward({}, /*retain_graph=*/true);  // both losses share parts of the graph
    scaler.scale(loss1).backward();

    skipped0 += scaler.unscale_(optimizer0).skipped;  // needed only where gradients are read
    scaler.step(optimizer0);                          // each optimizer skips by its own gradients
    skipped1 += scaler.step(optimizer1).skipped;
    scaler.update();
    losses.push_back(loss0.item<double>() + loss1.item<double>());
  }
  problem::report("both losses", losses);
  std::printf("skipped steps: %d and %d; loss scale at the end: %.0f\n", skipped0, skipped1, scaler.get_scale());
  return 0;
}
