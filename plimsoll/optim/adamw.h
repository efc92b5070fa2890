// AdamW on our one-pass kernels, as a torch optimizer: global norm, finite check, loss-scale removal and clipping cost
// one read of the gradients and nothing else. Parameters may be fp32, bf16 or fp16; narrow ones get an FP32 master
// weight. CPU only.
//
//   AdamW optimizer(decay_groups(model->named_parameters(), torch::optim::AdamWOptions(3e-4).weight_decay(0.1)));
//   loss.backward();
//   const StepReport report = optimizer.update({.max_norm = 1.0});
#pragma once

#include <torch/optim/optimizer.h>

#include <map>
#include <string>
#include <vector>

#include "plimsoll/format/format.h"
#include "plimsoll/ops/scaled_optimizer.h"
#include "plimsoll/optim/groups.h"

namespace plimsoll::optim {

struct AdamWSettings {
  format::Format moment_format = format::Format::kFp32;  // fp32, bf16 (stochastic rounding)
  uint64_t seed = 0;                                     // of the stochastic rounding
};

using ops::StepReport;
using ops::UpdateOptions;

class AdamW : public torch::optim::Optimizer, public ops::ScaledOptimizer {
 public:
  // Throws c10::Error: amsgrad, a parameter that is not a contiguous CPU tensor of fp32, bf16 or fp16, two of one name,
  // options out of range.
  explicit AdamW(const std::vector<NamedGroup>& groups, AdamWSettings settings = {});

  using ScaledOptimizer::update;
  StepReport update(const UpdateOptions& options) override;

  // update() without clipping; the report is last_report().
  torch::Tensor step(LossClosure closure = nullptr) override;

  const StepReport& last_report() const { return last_report_; }
  int64_t skipped_steps() const { return skipped_steps_; }

  void set_lr(double lr);  // of all groups

  // NAME.exp_avg, NAME.exp_avg_sq, NAME.step (int64 [1]) and, for narrow parameters, NAME.master. Shares storage with
  // the optimizer.
  std::map<std::string, torch::Tensor> state_dict() const;
  // Copies. Throws c10::Error, with nothing changed, if a tensor is missing, unknown, or of another shape or dtype.
  void load_state_dict(const std::map<std::string, torch::Tensor>& state);

  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

  // Groups are fixed at construction, because their parameters need names.
  void add_param_group(const torch::optim::OptimizerParamGroup& group) = delete;
  void add_parameters(const std::vector<torch::Tensor>& parameters) = delete;

 private:
  struct Entry {
    std::string name;
    torch::Tensor parameter;
    size_t group;
    torch::Tensor moment1, moment2, steps;
    torch::Tensor master;      // fp32; the parameter itself if that is fp32
    int64_t seen_version = 0;  // of the parameter when master was last in step with it
  };

  void add_entry(const std::string& name, const torch::Tensor& parameter, size_t group);
  void refresh_master(Entry& entry) const;
  void update_entry(Entry& entry, const torch::Tensor& grad, float grad_scale);

  AdamWSettings settings_;
  std::vector<Entry> entries_;
  StepReport last_report_;
  int64_t skipped_steps_ = 0;
};

}  // namespace plimsoll::optim
