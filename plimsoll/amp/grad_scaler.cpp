#include "plimsoll/amp/grad_scaler.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "plimsoll/amp/gradient_sample.h"
#include "plimsoll/amp/shared_findings.h"

namespace plimsoll::amp {
namespace {

using ops::StepReport;
using torch::optim::Optimizer;

// torch's optimizers know their parameters by place alone.
struct Place {
  size_t group, index;
};
std::string name(const Place& place) {
  return "parameter " + std::to_string(place.index) + " of group " + std::to_string(place.group);
}

void expect_gradient(bool any) {
  TORCH_CHECK(any, "GradScaler: expected a gradient in one parameter of this optimizer at least; ",
              "call backward() on scale(loss) first");
}

std::vector<at::Tensor> gradients_as_they_are(const Optimizer& optimizer) {
  std::vector<at::Tensor> grads;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      if (parameter.grad().defined()) grads.push_back(parameter.grad());
    }
  }
  return grads;
}

struct OptimizerGradients {
  std::vector<at::Tensor> grads;
  std::vector<Place> places;  // of their parameters
};

// To be unscaled in place.
OptimizerGradients gradients_of(const Optimizer& optimizer) {
  OptimizerGradients result;
  for (size_t group = 0; group < optimizer.param_groups().size(); ++group) {
    const std::vector<at::Tensor>& parameters = optimizer.param_groups()[group].params();
    for (size_t index = 0; index < parameters.size(); ++index) {
      const at::Tensor& grad = parameters[index].grad();
      if (!grad.defined()) continue;
      TORCH_CHECK(grad.scalar_type() != at::kHalf,
                  "GradScaler: expected gradients in fp32 or bf16 to unscale in place, got fp16 in ",
                  name({group, index}), ": keep master weights in fp32 and compute in fp16 under autocast");
      result.grads.push_back(grad);
      result.places.push_back({group, index});
    }
  }
  return result;
}

at::Tensor times(const at::Tensor& loss, float scale) {
  return loss.scalar_type() == at::kDouble ? loss * static_cast<double>(scale) : loss.to(at::kFloat) * scale;
}

float inverse_of(float scale) {
  const double inverse = 1.0 / static_cast<double>(scale);
  constexpr float kLargest = std::numeric_limits<float>::max();
  return inverse > static_cast<double>(kLargest) ? std::numeric_limits<float>::infinity() : static_cast<float>(inverse);
}

void check(const ClipOptions& options) {
  TORCH_CHECK(options.max_norm >= 0, "GradScaler: expected max_norm >= 0, got ", options.max_norm);
}

void expect_floating_point(const at::Tensor& loss) {
  TORCH_CHECK(loss.is_floating_point(), "GradScaler.scale: expected a loss of floating point, got ",
              loss.scalar_type());
}

}  // namespace

GradScaler::GradScaler(GradScalerOptions options) : options_(options) {
  TORCH_CHECK(options.growth_factor > 1, "GradScaler: expected growth_factor > 1, got ", options.growth_factor);
  TORCH_CHECK(options.backoff_factor > 0 && options.backoff_factor < 1,
              "GradScaler: expected backoff_factor between 0 and 1, got ", options.backoff_factor);
  TORCH_CHECK(options.growth_interval > 0, "GradScaler: expected growth_interval > 0, got ", options.growth_interval);
  TORCH_CHECK(options.min_scale >= 0 && options.min_scale <= options.max_scale,
              "GradScaler: expected 0 <= min_scale <= max_scale, got ", options.min_scale, " and ", options.max_scale);
  TORCH_CHECK(options.hysteresis > 0, "GradScaler: expected hysteresis > 0, got ", options.hysteresis);
  for (const Optimizer* each : options.optimizers) {
    TORCH_CHECK(each != nullptr && std::ranges::count(options.optimizers, each) == 1,
                "GradScaler: expected each of the optimizers once, got ",
                each == nullptr ? "none" : "one of them twice");
  }
  scales_.resize(std::max<size_t>(1, options.optimizers.size()));
  set_scale("GradScaler", options.init_scale);
}

size_t GradScaler::place_of(const Optimizer& optimizer) const {
  if (options_.optimizers.empty()) return 0;
  const auto found = std::ranges::find(options_.optimizers, &optimizer);
  TORCH_CHECK(found != options_.optimizers.end(),
              "GradScaler: expected one of its optimizers, each of which has a scale, got another");
  return static_cast<size_t>(found - options_.optimizers.begin());
}

double GradScaler::get_scale() const {
  if (!options_.enabled) return 1;
  return static_cast<double>(std::ranges::min(scales_, {}, &LossScale::scale).scale);
}

double GradScaler::get_scale(const Optimizer& optimizer) const {
  return options_.enabled ? static_cast<double>(scales_[place_of(optimizer)].scale) : 1;
}

void GradScaler::set_scale(const char* call, double scale) {
  const auto narrow = static_cast<float>(std::clamp(scale, options_.min_scale, options_.max_scale));
  TORCH_CHECK(narrow > 0 && std::isfinite(narrow) && std::isfinite(1 / narrow), call,
              ": expected a positive scale that fp32 holds, and its reciprocal, got ", scale);
  for (LossScale& each : scales_) each.scale = narrow;
}

float GradScaler::inv_scale(const Optimizer& optimizer) const { return inverse_of(scales_[place_of(optimizer)].scale); }

void GradScaler::warn_of_lost_scale(float scale) {
  if (warned_ || std::isfinite(inverse_of(scale))) return;
  warned_ = true;
  TORCH_WARN(
      "GradScaler: the scale has come down to ", scale, ", whose reciprocal FP32 does not hold, because one step ",
      "after the other had gradients that were not finite; from here on every step is skipped. Gradients that are ",
      "not finite at any scale come from the model or its data; min_scale keeps the scale larger");
}

at::Tensor GradScaler::scale(const at::Tensor& loss) {
  if (!options_.enabled) return loss;
  expect_floating_point(loss);
  TORCH_CHECK(options_.optimizers.empty(),
              "GradScaler.scale: expected the optimizer of this loss, each of which has a scale, got none");
  scaled_ = true;
  return times(loss, scales_.front().scale);
}

at::Tensor GradScaler::scale(const at::Tensor& loss, const Optimizer& optimizer) {
  if (!options_.enabled) return loss;
  expect_floating_point(loss);
  const float scale = scales_[place_of(optimizer)].scale;
  scaled_ = true;
  return times(loss, scale);
}

std::vector<at::Tensor> GradScaler::scale(const std::vector<at::Tensor>& losses) {
  std::vector<at::Tensor> result;
  for (const at::Tensor& loss : losses) result.push_back(scale(loss));
  return result;
}

GradScaler::OptimizerState GradScaler::unscaled(const Optimizer& optimizer, UnscaleOptions options) {
  if (options_.ranks != nullptr) return unscaled_over_ranks(optimizer, options);
  const OptimizerGradients gradients = gradients_of(optimizer);
  expect_gradient(!gradients.grads.empty());
  options.expect_clip = clipped_;
  const UnscaleSummary summary = unscale_gradients_(gradients.grads, options);
  clipped_ = summary.clip_factor < 1;
  StepReport report{.skipped = summary.non_finite > 0,
                    .grad_norm = summary.grad_norm,
                    .clip_factor = summary.clip_factor,
                    .non_finite = summary.non_finite,
                    .first_non_finite = {}};
  if (report.skipped) report.first_non_finite = name(gradients.places[static_cast<size_t>(summary.first_non_finite)]);
  flushed_share_ = summary.histogram.flushed_share();
  return {.report = std::move(report), .histogram = summary.histogram};
}

GradScaler::OptimizerState GradScaler::unscaled_over_ranks(const Optimizer& optimizer, const UnscaleOptions& options) {
  const OptimizerGradients gradients = gradients_of(optimizer);
  const UnscaleSummary mine = unscale_gradients_(gradients.grads, {.inv_scale = options.inv_scale});
  const Findings found = shared({.gradients = static_cast<int64_t>(gradients.grads.size()),
                                 .non_finite = mine.non_finite,
                                 .sum_of_squares = mine.grad_norm * mine.grad_norm,
                                 .histogram = mine.histogram},
                                ++shared_, *options_.ranks);
  expect_gradient(found.gradients > 0);
  StepReport report{.skipped = found.non_finite > 0,
                    .grad_norm = std::sqrt(found.sum_of_squares),
                    .clip_factor = 1,
                    .non_finite = found.non_finite,
                    .first_non_finite = {}};
  if (report.skipped) {
    report.first_non_finite = "a parameter of rank " + std::to_string(found.first_with);
  } else {
    report.clip_factor = ops::clip_factor(options.max_norm, report.grad_norm);
    if (report.clip_factor < 1) {
      unscale_gradients_(gradients.grads, {.inv_scale = static_cast<float>(report.clip_factor)});
    }
  }
  flushed_share_ = found.histogram.flushed_share();
  return {.report = std::move(report), .histogram = found.histogram};
}

// The histogram of gradients that still have the scale on them; an ops::ScaledOptimizer takes it off itself.
GradientHistogram GradScaler::histogram_of(const Optimizer& optimizer) {
  const std::vector<at::Tensor> grads = gradients_as_they_are(optimizer);
  Findings found{.gradients = static_cast<int64_t>(grads.size()), .histogram = gradient_histogram(grads)};
  if (options_.ranks != nullptr) found = shared(found, ++shared_, *options_.ranks);
  expect_gradient(found.gradients > 0);
  flushed_share_ = found.histogram.flushed_share();
  return found.histogram;
}

GradScaler::OptimizerState& GradScaler::state_for(const char* call, const Optimizer& optimizer) {
  TORCH_CHECK(scaled_, "GradScaler.", call, ": expected scale(loss) to be called before, it never was");
  place_of(optimizer);  // of one that it knows
  return states_[&optimizer];
}

StepReport GradScaler::unscale_(Optimizer& optimizer, const ClipOptions& options) {
  check(options);
  if (!options_.enabled) {
    return std::isfinite(options.max_norm) ? unscaled(optimizer, {.max_norm = options.max_norm}).report : StepReport();
  }
  OptimizerState& state = state_for("unscale_", optimizer);
  TORCH_CHECK(state.stage != Stage::kUnscaled,
              "GradScaler: unscale_() has already been called on this optimizer since the last update()");
  TORCH_CHECK(state.stage != Stage::kStepped, "GradScaler: unscale_() is being called after step()");
  state = unscaled(optimizer, {.inv_scale = inv_scale(optimizer), .max_norm = options.max_norm});
  state.stage = Stage::kUnscaled;
  return state.report;
}

StepReport GradScaler::step(Optimizer& optimizer, const ClipOptions& options) {
  check(options);
  auto* const fused = dynamic_cast<ops::ScaledOptimizer*>(&optimizer);
  if (!options_.enabled) {
    if (fused != nullptr) return fused->update({.max_norm = options.max_norm});
    StepReport report;
    if (std::isfinite(options.max_norm)) report = unscaled(optimizer, {.max_norm = options.max_norm}).report;
    optimizer.step();
    report.skipped = false;
    return report;
  }
  OptimizerState& state = state_for("step", optimizer);
  TORCH_CHECK(state.stage != Stage::kStepped, "GradScaler: step() has already been called since the last update()");
  if (state.stage == Stage::kUnscaled) {
    TORCH_CHECK(!std::isfinite(options.max_norm),
                "GradScaler.step: expected max_norm in unscale_(), which has been called, got it here");
    if (!state.report.skipped) optimizer.step();
  } else if (fused != nullptr) {
    state.histogram = histogram_of(optimizer);
    state.report =
        fused->update({.max_norm = options.max_norm, .inv_loss_scale = static_cast<double>(inv_scale(optimizer))});
  } else {
    state = unscaled(optimizer, {.inv_scale = inv_scale(optimizer), .max_norm = options.max_norm});
    if (!state.report.skipped) optimizer.step();
  }
  state.stage = Stage::kStepped;
  return state.report;
}

std::optional<StepEvidence> GradScaler::evidence(size_t place) const {
  StepEvidence seen{.histogram = GradientHistogram{}};
  bool any = false;
  for (const auto& [optimizer, state] : states_) {
    if (place_of(*optimizer) != place) continue;
    any = any || state.stage != Stage::kReady;
    seen.found_inf = seen.found_inf || state.report.skipped;
    *seen.histogram += state.histogram;
    seen.grad_norm = std::max(seen.grad_norm, state.report.grad_norm);
  }
  return any ? std::optional(seen) : std::nullopt;
}

LossScaleRule GradScaler::rule() const {
  return {.growth_factor = options_.growth_factor,
          .backoff_factor = options_.backoff_factor,
          .growth_interval = options_.growth_interval,
          .hysteresis = options_.hysteresis,
          .min_scale = options_.min_scale,
          .max_scale = options_.max_scale,
          .automatic = options_.automatic};
}

void GradScaler::update() {
  if (!options_.enabled) return;
  const bool seen = std::ranges::any_of(states_, [](const auto& entry) { return entry.second.stage != Stage::kReady; });
  TORCH_CHECK(seen, "GradScaler.update: expected unscale_() or step() since the last update(), got neither");
  for (size_t place = 0; place < scales_.size(); ++place) {
    const std::optional<StepEvidence> of_scale = evidence(place);
    if (!of_scale) continue;
    scales_[place].update(rule(), *of_scale);
    warn_of_lost_scale(scales_[place].scale);
  }
  states_.clear();
}

void GradScaler::update(double new_scale) {
  if (!options_.enabled) return;
  set_scale("GradScaler.update", new_scale);
  states_.clear();
}

std::map<std::string, double> GradScaler::state_dict() const {
  if (!options_.enabled) return {};
  std::map<std::string, double> state = {{"growth_factor", options_.growth_factor},
                                         {"backoff_factor", options_.backoff_factor},
                                         {"growth_interval", static_cast<double>(options_.growth_interval)}};
  for (size_t place = 0; place < scales_.size(); ++place) {
    state[key("scale", place)] = static_cast<double>(scales_[place].scale);
    state[key("_growth_tracker", place)] = static_cast<double>(scales_[place].growth_tracker);
    if (options_.hysteresis > 1) state[key("_overflows", place)] = static_cast<double>(scales_[place].overflows);
  }
  if (options_.hysteresis > 1) state["hysteresis"] = static_cast<double>(options_.hysteresis);
  return state;
}

std::string GradScaler::key(const char* name, size_t place) const {
  std::string key = name;
  if (!options_.optimizers.empty()) key.append(".").append(std::to_string(place));
  return key;
}

void GradScaler::load_state_dict(const std::map<std::string, double>& state) {
  if (!options_.enabled) return;
  TORCH_CHECK(!state.empty(),
              "GradScaler: expected the state of an enabled scaler, got an empty one, as a disabled scaler saves it");
  const auto read = [&](const std::string& name) {
    TORCH_CHECK(state.contains(name), "GradScaler: expected ", name, " in the state, got none");
    return state.at(name);
  };
  const auto count = [&](const std::string& name) {
    const double value = read(name);
    TORCH_CHECK(value >= 0 && value < 0x1p53, "GradScaler: expected a count ", name, " in the state, got ", value);
    return static_cast<int64_t>(value);
  };
  // States of scalers without hysteresis do not say these.
  const auto read_or = [&](const std::string& name, int64_t otherwise) {
    return state.contains(name) ? count(name) : otherwise;
  };
  const auto saved = static_cast<size_t>(
      std::ranges::count_if(state, [](const auto& entry) { return entry.first.starts_with("scale"); }));
  TORCH_CHECK(saved <= scales_.size(), "GradScaler: expected ", scales_.size(), " scales in the state, got ", saved);
  std::vector<LossScale> scales(scales_.size());
  for (size_t place = 0; place < scales.size(); ++place) {
    // Backing off may have brought the scale down to anything.
    const double scale = read(key("scale", place));
    scales[place] = {.scale = static_cast<float>(scale),
                     .growth_tracker = count(key("_growth_tracker", place)),
                     .overflows = read_or(key("_overflows", place), 0)};
    TORCH_CHECK(scales[place].scale >= 0 && std::isfinite(scales[place].scale),
                "GradScaler: expected a scale in the state that FP32 holds, got ", scale);
  }
  GradScalerOptions options = options_;
  options.growth_factor = read("growth_factor");
  options.backoff_factor = read("backoff_factor");
  // A scale that stays has the largest interval, which doubles round to 2^63.
  const double interval = read("growth_interval");
  options.growth_interval = interval >= 0x1p63 ? std::numeric_limits<int64_t>::max() : count("growth_interval");
  options.hysteresis = read_or("hysteresis", options_.hysteresis);
  *this = GradScaler(options);
  scales_ = std::move(scales);
}

}  // namespace plimsoll::amp
