// torch.amp.GradScaler in C++: multiplies the loss so that small gradients survive FP16, takes the factor off again,
// skips steps with gradients that are not finite, and adapts the factor.
//
//   GradScaler scaler;
//   scaler.scale(loss).backward();
//   scaler.step(optimizer, {.max_norm = 1.0});
//   scaler.update();
//
// Between backward and step, unscale_(optimizer) gives the gradients their true size, to look at or to change them.
// Several losses: scale each; several optimizers: step each; one update(). Where each optimizer is to have a scale of
// its own, `optimizers` lists them, and scale(loss, optimizer) says whose gradients the loss makes.
// Source: Micikevicius et al., Mixed Precision Training, 2018; interface: torch.amp.GradScaler.
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "plimsoll/amp/loss_scale_rule.h"
#include "plimsoll/amp/unscale.h"
#include "plimsoll/ops/optimizer/scaled_optimizer.h"
#include "plimsoll/ops/ranks/rank_group.h"

namespace plimsoll::amp {

struct GradScalerOptions {
  double init_scale = 65536;
  double growth_factor = 2;        // > 1
  double backoff_factor = 0.5;     // in (0, 1)
  int64_t growth_interval = 2000;  // clean steps until the scale grows
  bool enabled = true;             // false: every call does what it would do without a scaler
  int64_t hysteresis = 1;          // overflows until the scale backs off, counted anew where it may grow
  // Bounds of the scale, of init_scale and update(new_scale), too; it never reaches Inf.
  double min_scale = 0;
  double max_scale = std::numeric_limits<double>::infinity();
  std::optional<AutomaticScale> automatic = std::nullopt;  // instead of growing blindly: AutomaticLossScaler
  // Ranks that have a part of the gradients each: all skip, clip and scale alike, and unscale_(), step() are collectives.
  std::shared_ptr<const ops::RankGroup> ranks = nullptr;
  // These alone are stepped, and each has a scale of its own; none: one scale for all. They outlive the scaler.
  std::vector<const torch::optim::Optimizer*> optimizers = {};
};

struct ClipOptions {
  double max_norm = std::numeric_limits<double>::infinity();  // of all gradients together, without the scale
};

// Every misuse throws c10::Error and changes nothing.
class GradScaler {
 public:
  explicit GradScaler(GradScalerOptions options = {});

  // loss * scale, in fp32 (fp64 stays): fp16 could not hold it.
  at::Tensor scale(const at::Tensor& loss);
  std::vector<at::Tensor> scale(const std::vector<at::Tensor>& losses);
  // By the scale of the optimizer that this loss makes gradients for.
  at::Tensor scale(const at::Tensor& loss, const torch::optim::Optimizer& optimizer);

  // Once an optimizer between two update(), before its step(). In place; see unscale_gradients_.
  ops::StepReport unscale_(torch::optim::Optimizer& optimizer, const ClipOptions& options = {});

  // Unscales unless unscale_ did, and then steps unless a gradient is not finite. An ops::ScaledOptimizer takes the
  // scale off itself, and its gradients stay as they are.
  ops::StepReport step(torch::optim::Optimizer& optimizer, const ClipOptions& options = {});

  // After all steps: a scale backs off if any of its optimizers saw something that is not finite, else counts towards
  // growth; the scale of an optimizer that was not stepped stays. Where
  // each of 144 steps and more backs off by half, the scale comes down to what has no reciprocal in FP32: one warning,
  // and from there on every step is skipped.
  void update();
  void update(double new_scale);

  double get_scale() const;  // the smallest, if there are several
  double get_scale(const torch::optim::Optimizer& optimizer) const;
  int64_t growth_tracker() const { return scales_.front().growth_tracker; }  // clean steps since the scale changed
  // GradientHistogram::flushed_share of the gradients that the last unscale_() or step() saw.
  double flushed_share() const { return flushed_share_; }
  const GradScalerOptions& options() const { return options_; }
  bool is_enabled() const { return options_.enabled; }

  // torch's keys: scale, growth_factor, backoff_factor, growth_interval, _growth_tracker; empty if disabled. With a
  // hysteresis that and _overflows, too; of several scales "scale.0", "scale.1" and so on, in the optimizers' order.
  std::map<std::string, double> state_dict() const;
  void load_state_dict(const std::map<std::string, double>& state);

 private:
  enum class Stage { kReady, kUnscaled, kStepped };
  struct OptimizerState {
    Stage stage = Stage::kReady;
    ops::StepReport report;
    GradientHistogram histogram;  // of the scaled gradients
  };

  // The state of an optimizer that may be unscaled or stepped now.
  OptimizerState& state_for(const char* call, const torch::optim::Optimizer& optimizer);
  OptimizerState unscaled(const torch::optim::Optimizer& optimizer, UnscaleOptions options);
  OptimizerState unscaled_over_ranks(const torch::optim::Optimizer& optimizer, const UnscaleOptions& options);
  GradientHistogram histogram_of(const torch::optim::Optimizer& optimizer);
  size_t place_of(const torch::optim::Optimizer& optimizer) const;  // of its scale
  LossScaleRule rule() const;
  // Evidence of the optimizers of one scale since the last update(); nullopt: none.
  std::optional<StepEvidence> evidence(size_t place) const;
  float inv_scale(const torch::optim::Optimizer& optimizer) const;  // not finite where FP32 does not hold it
  void warn_of_lost_scale(float scale);
  std::string key(const char* name, size_t place) const;  // of one scale's state
  void set_scale(const char* call, double scale);

  GradScalerOptions options_;
  std::vector<LossScale> scales_;  // one, or one for each of the options' optimizers
  bool scaled_ = false;            // a loss has been scaled
  bool clipped_ = false;           // the last gradients were
  bool warned_ = false;            // of a scale without a reciprocal
  double flushed_share_ = 0;
  int64_t shared_ = 0;  // calls that were collectives
  std::unordered_map<const torch::optim::Optimizer*, OptimizerState> states_;
};

// Picks the scale from the histogram of the gradients: grows while FP16 would flush too many of them, and gives way
// before they overflow. An overflow all the same backs off as ever.
class AutomaticLossScaler : public GradScaler {
 public:
  // Looks every growth_interval clean steps whether to grow.
  explicit AutomaticLossScaler(const AutomaticScale& automatic = {}, int64_t growth_interval = 20)
      : GradScaler({.growth_interval = growth_interval, .automatic = automatic}) {}
};

}  // namespace plimsoll::amp
