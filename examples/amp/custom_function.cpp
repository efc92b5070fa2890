// Custom autograd functions: one whose backward runs under the autocast of its forward, one that always computes in
// fp32.
#include "plimsoll/amp/custom_function.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/optim/adamw.h>

#include <cmath>
#include <map>
#include <string>

#include "examples/amp/problem.h"
#include "plimsoll/amp/autocast.h"
#include "plimsoll/amp/grad_scaler.h"

using namespace plimsoll;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

namespace {

std::map<std::string, at::ScalarType> dtypes;

// x w^T in the dtype of the autocast scope.
struct Product : torch::autograd::Function<Product> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight) {
    const amp::CustomForward scope(*context, at::kCPU);
    context->save_for_backward({x, weight});
    const at::Tensor output = x.mm(weight.t());
    dtypes["product, forward"] = output.scalar_type();
    return output;
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const amp::Autocast scope = amp::autocast_of_forward(*context);
    const variable_list saved = context->get_saved_variables();
    const at::Tensor grad_x = grads[0].mm(saved[1]), grad_weight = grads[0].t().mm(saved[0]);
    dtypes["product, backward"] = grad_x.scalar_type();
    return {grad_x, grad_weight};
  }
};

// x / (1 + |x|), in fp32.
struct Softsign : torch::autograd::Function<Softsign> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input) {
    const amp::CustomForward scope(*context, at::kCPU, at::kFloat);
    const at::Tensor x = scope.cast(input);
    dtypes["softsign, forward"] = x.scalar_type();
    context->save_for_backward({x});
    return x / (1 + x.abs());
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const amp::Autocast scope = amp::autocast_of_forward(*context);
    const at::Tensor x = context->get_saved_variables()[0];
    dtypes["softsign, backward"] = grads[0].scalar_type();
    return {grads[0] / (1 + x.abs()).square()};
  }
};

}  // namespace

int main() {
  problem::Data data;
  torch::manual_seed(1);
  const at::Tensor first = (at::randn({64, problem::kFeatures}) / std::sqrt(problem::kFeatures)).requires_grad_(true);
  const at::Tensor second = (at::randn({problem::kOutputs, 64}) / 8).requires_grad_(true);
  torch::optim::AdamW optimizer({first, second}, torch::optim::AdamWOptions(3e-3));
  amp::GradScaler scaler;
  std::vector<double> losses;
  for (int step = 0; step < 200; ++step) {
    const problem::Batch batch = data.next();
    optimizer.zero_grad();
    at::Tensor loss;
    {
      const amp::Autocast scope(at::kCPU, at::kHalf);
      const at::Tensor hidden = Softsign::apply(Product::apply(batch.input, first));
      loss = at::mse_loss(Product::apply(hidden, second), batch.target);
    }
    scaler.scale(loss).backward();
    scaler.step(optimizer);
    scaler.update();
    losses.push_back(loss.item<double>());
  }
  problem::report("custom functions", losses);
  for (const auto& [name, dtype] : dtypes) {
    std::printf("%s: %s\n", name.c_str(), c10::toString(dtype));
    if (dtype != (name.starts_with("product") ? at::kHalf : at::kFloat)) return 1;
  }
  return 0;
}
