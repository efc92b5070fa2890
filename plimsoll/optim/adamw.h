// AdamW on our one-pass kernels, as a torch optimizer: global norm, finite check, loss-scale removal and clipping cost
// one read of the gradients and nothing else. Parameters may be fp32, bf16 or fp16; narrow ones get an FP32 master
// weight. CPU only.
//
//   AdamW optimizer(decay_groups(model->named_parameters(), torch::optim::AdamWOptions(3e-4).weight_decay(0.1)));
//   loss.backward();
//   const StepReport report = optimizer.update({.max_norm = 1.0});
#pragma once

#include <map>
#include <string>
#include <vector>

#include "plimsoll/format/format.h"
#include "plimsoll/optim/named_optimizer.h"
#include "plimsoll/optim/state_home.h"

namespace plimsoll::optim {

// The seed of one parameter's stochastic rounding: far apart for neighbours.
inline uint64_t seed_of(uint64_t seed, uint64_t index) { return seed + 0x9E3779B97F4A7C15u * index; }

struct AdamWSettings {
  format::Format moment_format = format::Format::kFp32;  // fp32, bf16 (stochastic rounding)
  uint64_t seed = 0;                                     // of the stochastic rounding
  // Numbers of the parameters for that rounding, in the groups' order; from 0 on if empty. Ranks that share parameters
  // number them alike.
  std::vector<uint64_t> numbers = {};
  StateHome home = {};
};

// All gradients of an optimizer, the loss scale taken off.
struct GradientMeasure {
  double sum_of_squares = 0;     // not finite exactly if non_finite > 0
  int64_t non_finite = 0;        // elements
  std::string first_non_finite;  // the first parameter that holds one
};

class AdamW : public NamedOptimizer {
 public:
  // Throws c10::Error: amsgrad, a parameter that is not a contiguous CPU tensor of fp32, bf16 or fp16, two of one name,
  // options out of range.
  explicit AdamW(const std::vector<NamedGroup>& groups, AdamWSettings settings = {});

  using NamedOptimizer::update;
  StepReport update(const UpdateOptions& options) override;

  // update() in its two halves. Between them, ranks that have a part of the parameters each agree on what they
  // measured.
  GradientMeasure measure(double inv_loss_scale) const;
  StepReport apply(const GradientMeasure& measure, const UpdateOptions& options);

  const StepReport& last_report() const { return last_report_; }  // of update() or step()
  int64_t skipped_steps() const { return skipped_steps_; }

  // NAME.exp_avg, NAME.exp_avg_sq, NAME.step (int64 [1]) and, for narrow parameters, NAME.master.
  std::map<std::string, torch::Tensor> state_dict() const override;
  void load_state_dict(const std::map<std::string, torch::Tensor>& state) override;

  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  struct Entry {
    std::string name;
    torch::Tensor parameter;
    size_t group;
    uint64_t number;  // for the stochastic rounding
    torch::Tensor moment1, moment2, steps;
    torch::Tensor master;      // fp32; the parameter itself if that is fp32
    int64_t seen_version = 0;  // of the parameter when master was last in step with it
  };

  void add_entry(const std::string& name, const torch::Tensor& parameter, size_t group);
  static const torch::Tensor& checked_gradient(const Entry& entry);
  void refresh_master(Entry& entry) const;
  void rest(at::TensorList tensors) const;
  void update_entry(Entry& entry, const torch::Tensor& grad, float grad_scale);

  AdamWSettings settings_;
  std::vector<Entry> entries_;
  StepReport last_report_;
  int64_t skipped_steps_ = 0;
};

}  // namespace plimsoll::optim
