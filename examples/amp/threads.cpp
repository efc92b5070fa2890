// Autocast belongs to a thread. A model that runs in other threads opens a scope in its forward, or brings a snapshot.
#include <torch/optim/adamw.h>

#include <array>
#include <thread>

#include "examples/amp/problem.h"
#include "plimsoll/amp/autocast.h"
#include "plimsoll/amp/grad_scaler.h"

using namespace plimsoll;

namespace {

using Forward = at::Tensor (*)(torch::nn::Sequential&, const at::Tensor&, const amp::Snapshot&);

at::Tensor plain(torch::nn::Sequential& model, const at::Tensor& input, const amp::Snapshot&) {
  return model->forward(input);
}

at::Tensor in_forward(torch::nn::Sequential& model, const at::Tensor& input, const amp::Snapshot&) {
  const amp::Autocast scope(at::kCPU, at::kHalf);
  return model->forward(input);
}

at::Tensor as_the_caller(torch::nn::Sequential& model, const at::Tensor& input, const amp::Snapshot& caller) {
  const amp::Autocast scope(caller);
  return model->forward(input);
}

// One thread for each half of the batch.
at::Tensor parallel(Forward forward, torch::nn::Sequential& model, const at::Tensor& input) {
  const std::vector<at::Tensor> parts = input.chunk(2);
  std::array<at::Tensor, 2> outputs;
  const auto run = [&, caller = amp::Snapshot()](size_t part) { outputs[part] = forward(model, parts[part], caller); };
  std::thread first(run, 0), second(run, 1);
  first.join();
  second.join();
  return at::cat({outputs[0], outputs[1]});
}

void train(const char* name, Forward forward, at::ScalarType expected) {
  problem::Data data;
  torch::nn::Sequential model = problem::model(1);
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(3e-3));
  amp::GradScaler scaler;
  std::vector<double> losses;
  at::ScalarType dtype = at::kFloat;
  for (int step = 0; step < 200; ++step) {
    const problem::Batch batch = data.next();
    optimizer.zero_grad();
    at::Tensor loss;
    {
      const amp::Autocast scope(at::kCPU, at::kHalf);  // holds in this thread
      const at::Tensor output = parallel(forward, model, batch.input);
      dtype = output.scalar_type();
      loss = at::mse_loss(output, batch.target);
    }
    scaler.scale(loss).backward();
    scaler.step(optimizer);
    scaler.update();
    losses.push_back(loss.item<double>());
  }
  std::printf("%s computes in %s\n", name, c10::toString(dtype));
  problem::report(name, losses);
  if (dtype != expected) std::exit(1);
}

}  // namespace

int main() {
  train("without a scope of its own, the model", plain, at::kFloat);
  train("with a scope in its forward, it", in_forward, at::kHalf);
  train("with the caller's snapshot, it", as_the_caller, at::kHalf);
  return 0;
}
