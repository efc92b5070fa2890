// A whole program: one linear layer trains in FP8 to copy another.
#include <torch/nn/functional/loss.h>
#include <torch/utils.h>

#include <cstdio>

#include "plimsoll/amp/fp8_autocast.h"
#include "plimsoll/nn/linear.h"
#include "plimsoll/optim/adamw.h"

int main() {
  using namespace plimsoll;
  torch::manual_seed(1);
  nn::Linear teacher(64, 32), student(64, 32);
  optim::AdamW optimizer(optim::one_group(student->named_parameters(), torch::optim::AdamWOptions(1e-2)));
  for (int step = 0; step <= 200; ++step) {
    const at::Tensor x = torch::randn({128, 64});
    at::Tensor output;
    {
      amp::Fp8Autocast scope({.recipe = recipe::by_name("fp8")});
      output = student->forward(x);
    }
    const at::Tensor loss = torch::nn::functional::mse_loss(output.to(torch::kFloat), teacher->forward(x).detach());
    optimizer.zero_grad();
    loss.backward();
    optimizer.update();
    if (step % 50 == 0) std::printf("step %3d  loss %.5f\n", step, loss.item<double>());
  }
}
