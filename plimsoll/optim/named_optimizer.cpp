#include "plimsoll/optim/named_optimizer.h"

#include <c10/util/Exception.h>

#include <cmath>
#include <memory>
#include <utility>

namespace plimsoll::optim {
namespace {

std::vector<torch::optim::OptimizerParamGroup> torch_groups(const std::vector<NamedGroup>& groups) {
  std::vector<torch::optim::OptimizerParamGroup> result;
  for (const NamedGroup& group : groups) {
    std::vector<torch::Tensor> parameters;
    for (const auto& [name, parameter] : group.parameters) parameters.push_back(parameter);
    result.emplace_back(std::move(parameters));
  }
  return result;
}

}  // namespace

NamedOptimizer::NamedOptimizer(const std::vector<NamedGroup>& groups)
    : Optimizer(torch_groups(groups), std::make_unique<torch::optim::AdamWOptions>()) {
  // Set here, not through the base class: that one replaces whatever equals AdamWOptions' own default.
  for (size_t g = 0; g < groups.size(); ++g) {
    param_groups_[g].set_options(std::make_unique<torch::optim::AdamWOptions>(groups[g].options));
  }
}

torch::Tensor NamedOptimizer::step(LossClosure closure) {
  torch::Tensor loss;
  if (closure) {
    const torch::AutoGradMode enabled(true);
    loss = closure();
  }
  update();
  return loss;
}

void NamedOptimizer::set_lr(double lr) {
  TORCH_CHECK(lr >= 0 && std::isfinite(lr), "optimizer: expected a finite lr >= 0, got ", lr);
  for (auto& group : param_groups_) group.options().set_lr(lr);
}

}  // namespace plimsoll::optim
