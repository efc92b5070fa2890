// AdamW on our one-pass kernels, as a torch optimizer: global norm, finite check, loss-scale removal and clipping cost
// one read of the gradients and nothing else. Parameters may be fp32, bf16 or fp16; narrow ones get an FP32 master
// weight, or what the settings say instead. CPU only.
//
//   AdamW optimizer(decay_groups(model->named_parameters(), torch::optim::AdamWOptions(3e-4).weight_decay(0.1)));
//   loss.backward();
//   const StepReport report = optimizer.update({.max_norm = 1.0});
//
// With gradients that are freed in backward:
//   {
//     const GradientRelease release = optimizer.release_gradients();
//     loss.backward();
//   }
//   const StepReport report = optimizer.update();
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "plimsoll/optim/gradient_release.h"
#include "plimsoll/optim/named_optimizer.h"
#include "plimsoll/optim/state_conversion.h"
#include "plimsoll/optim/state_home.h"
#include "plimsoll/optim/state_kinds.h"

namespace plimsoll::optim {

// The seed of one parameter's stochastic rounding: far apart for neighbours.
inline uint64_t seed_of(uint64_t seed, uint64_t index) { return seed + 0x9E3779B97F4A7C15u * index; }

// A parameter among those of all ranks, whose stochastic rounding is drawn by it.
struct ParameterPlace {
  uint64_t number = 0;
  int64_t begin = 0;  // its first element here, where it is part of another; of 8-bit states a multiple of 32
};

struct AdamWSettings {
  StateKind optimizer_state = StateKind::kFp32;
  MasterKind masters = MasterKind::kFp32;
  uint64_t seed = 0;                        // of the stochastic rounding
  std::vector<ParameterPlace> places = {};  // in the groups' order; empty: whole parameters, numbered from 0 on
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
  // Throws c10::Error: amsgrad, a parameter that is not a contiguous CPU tensor of fp32, bf16 or fp16, an fp16 one
  // without an FP32 master, two of one name, options out of range.
  explicit AdamW(const std::vector<NamedGroup>& groups, AdamWSettings settings = {});

  using NamedOptimizer::update;
  StepReport update(const UpdateOptions& options) override;

  // update() in its two halves. Between them, ranks that have a part of the parameters each agree on what they
  // measured.
  GradientMeasure measure(double inv_loss_scale) const;
  StepReport apply(const GradientMeasure& measure, const UpdateOptions& options);

  const StepReport& last_report() const { return last_report_; }  // of update() or step()
  int64_t skipped_steps() const { return skipped_steps_; }

  // Until the release is destroyed, a backward pass updates a parameter when its gradient is complete, and frees the
  // gradient: the bits of update() after it. One whose gradient is not finite stays as it was; update(), which then has
  // nothing to do, reports it. `options` are those of that update(): clipping by the whole norm and a loss scale, which
  // may skip, are an error here or there. A parameter whose accumulation has a hook already, as those of
  // DistributedDataParallel have, is an error.
  [[nodiscard]] virtual GradientRelease release_gradients(const UpdateOptions& options = {});

  // NAME.exp_avg, NAME.exp_avg_sq, NAME.step (int64 [1]); of 8-bit states NAME.exp_avg_scale and NAME.exp_avg_sq_scale;
  // of narrow parameters NAME.master or NAME.correction.
  std::map<std::string, torch::Tensor> state_dict() const override;
  // States of other kinds are converted, to nearest. A master that is made of a split weight, or of a weight alone, takes
  // the parameter as it is: load that first.
  void load_state_dict(const std::map<std::string, torch::Tensor>& state) override;

  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  struct Entry {
    std::string name;
    torch::Tensor parameter;
    size_t group;
    ParameterPlace place;
    KeptMoment moment1, moment2;
    torch::Tensor steps;
    torch::Tensor master;      // fp32; the parameter itself if that is fp32; undefined: none
    torch::Tensor correction;  // int8 of a split weight, else undefined
    int64_t seen_version = 0;  // of the parameter when master was last in step with it
    bool has_own_master() const { return master.defined() && !master.is_same(parameter); }
  };

  void add_entry(const std::string& name, const torch::Tensor& parameter, size_t group);
  KeptMoment zero_moment(const torch::Tensor& parameter, Moment moment) const;
  GradientMeasure measure_of(const std::vector<const Entry*>& entries, double inv_loss_scale) const;
  // `state` with this optimizer's names and kinds.
  std::map<std::string, torch::Tensor> converted(const std::map<std::string, torch::Tensor>& state) const;
  static const torch::Tensor& checked_gradient(const Entry& entry);
  void refresh_master(Entry& entry) const;
  void rest(at::TensorList tensors) const;
  void update_entry(Entry& entry, const torch::Tensor& grad, float grad_scale);
  void update_and_free(Entry& entry);

  AdamWSettings settings_;
  std::vector<Entry> entries_;
  std::optional<GradientMeasure> released_;  // of the gradients that were freed since the last update()
  StepReport last_report_;
  int64_t skipped_steps_ = 0;
};

}  // namespace plimsoll::optim
