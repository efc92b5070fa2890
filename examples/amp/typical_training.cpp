// Typical mixed-precision training: forward pass and loss under autocast, backward outside, the step through the
// scaler.
#include <torch/optim/adamw.h>

#include "examples/amp/problem.h"
#include "plimsoll/amp/autocast.h"
#include "plimsoll/amp/grad_scaler.h"

using namespace plimsoll;

namespace {

std::vector<double> train(bool use_amp) {
  problem::Data data;
  torch::nn::Sequential model = problem::model(1);
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(3e-3));
  amp::GradScaler scaler({.enabled = use_amp});  // disabled: every call does what it would do without a scaler
  std::vector<double> losses;
  for (int step = 0; step < 200; ++step) {
    const problem::Batch batch = data.next();
    optimizer.zero_grad();
    at::Tensor loss;
    {
      const amp::Autocast scope(at::kCPU, {.dtype = at::kHalf, .enabled = use_amp});
      const at::Tensor output = model->forward(batch.input);  // Linear in fp16, LayerNorm in fp32
      loss = at::mse_loss(output, batch.target);              // in fp32
    }
    scaler.scale(loss).backward();  // each operator's gradient in the dtype of its forward pass
    scaler.step(optimizer);         // takes the scale off; skips the step if a gradient is not finite
    scaler.update();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

}  // namespace

int main() {
  problem::report("fp32", train(false));
  problem::report("fp16", train(true));
  return 0;
}
