// A torch optimizer whose parameters have names, and with them its state: what a training run saves and loads.
#pragma once

#include <torch/optim/optimizer.h>

#include <map>
#include <string>
#include <vector>

#include "plimsoll/ops/optimizer/scaled_optimizer.h"
#include "plimsoll/optim/groups.h"

namespace plimsoll::optim {

using ops::StepReport;
using ops::UpdateOptions;

class NamedOptimizer : public torch::optim::Optimizer, public ops::ScaledOptimizer {
 public:
  explicit NamedOptimizer(const std::vector<NamedGroup>& groups);

  using ScaledOptimizer::update;

  // update() without clipping.
  torch::Tensor step(LossClosure closure = nullptr) override;

  void set_lr(double lr);  // of all groups; finite, at least 0

  // Shares storage with the optimizer.
  virtual std::map<std::string, torch::Tensor> state_dict() const = 0;
  // Copies. Throws c10::Error, with nothing changed, if a tensor is missing, unknown, or of another shape or dtype.
  virtual void load_state_dict(const std::map<std::string, torch::Tensor>& state) = 0;

  // Groups are fixed at construction, because their parameters need names.
  void add_param_group(const torch::optim::OptimizerParamGroup& group) = delete;
  void add_parameters(const std::vector<torch::Tensor>& parameters) = delete;
};

}  // namespace plimsoll::optim
