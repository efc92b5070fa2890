#include "plimsoll/optim/adamw.h"

#include <torch/serialize/archive.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "plimsoll/kernels/adamw/adamw.h"
#include "plimsoll/kernels/gradient/gradient.h"
#include "plimsoll/ops/tensor/dtype.h"
#include "plimsoll/ops/tensor/traffic.h"
#include "plimsoll/watch/profile.h"

namespace plimsoll::optim {
namespace {

using format::Format;
using torch::Tensor;
using torch::optim::AdamWOptions;

constexpr const char* kName = "AdamW";
// Names of an entry's states, behind that of the parameter.
constexpr const char* kMomentStates[] = {".exp_avg", ".exp_avg_scale", ".exp_avg_sq", ".exp_avg_sq_scale", ".step"};
constexpr const char* kWeightStates[] = {".master", ".correction"};  // of narrow parameters

void check_options(const AdamWOptions& options) {
  const auto [beta1, beta2] = options.betas();
  TORCH_CHECK(options.lr() >= 0 && std::isfinite(options.lr()), kName, ": expected a finite lr >= 0, got ",
              options.lr());
  TORCH_CHECK(options.eps() >= 0, kName, ": expected eps >= 0, got ", options.eps());
  TORCH_CHECK(options.weight_decay() >= 0, kName, ": expected weight_decay >= 0, got ", options.weight_decay());
  TORCH_CHECK(beta1 >= 0 && beta1 < 1 && beta2 >= 0 && beta2 < 1, kName, ": expected betas in [0, 1), got ", beta1,
              " and ", beta2);
  TORCH_CHECK(!options.amsgrad(), kName, ": expected amsgrad = false, got true");
}

Tensor zeros(at::IntArrayRef sizes, at::ScalarType dtype, const StateHome& home) {
  return home.zeros ? home.zeros(sizes, dtype) : torch::zeros(sizes, dtype);
}

// The state NAME of a state dict; undefined: not there.
Tensor find(const std::map<std::string, Tensor>& state, const std::string& name) {
  const auto found = state.find(name);
  return found == state.end() ? Tensor() : found->second;
}

// `given` must have this shape, and the dtype of `mine` or another of `dtypes`.
void expect_state(const std::string& name, const Tensor& given, const Tensor& mine,
                  std::initializer_list<at::ScalarType> dtypes) {
  TORCH_CHECK(given.defined(), kName, ": expected ", name, " in the state, got none");
  const bool has_dtype = std::ranges::find(dtypes, given.scalar_type()) != dtypes.end();
  TORCH_CHECK(has_dtype && given.sizes() == mine.sizes(), kName, ": expected ", name, " to be ", mine.scalar_type(),
              " ", mine.sizes(), ", got ", given.scalar_type(), " ", given.sizes());
}

// A moment of the state, of whatever kind.
KeptMoment moment_in(const std::map<std::string, Tensor>& state, const std::string& name, const KeptMoment& mine,
                     at::ScalarType code_dtype) {
  const Tensor values = find(state, name);
  expect_state(name, values, mine.values, {at::kFloat, at::kBFloat16, code_dtype});
  if (values.scalar_type() != code_dtype) return {values.contiguous(), {}};
  const Tensor scale = find(state, name + "_scale");
  expect_state(name + "_scale", scale, torch::empty({scale_count(values.numel())}, torch::kHalf), {at::kHalf});
  return {values.contiguous(), scale.contiguous()};
}

void check_released(const UpdateOptions& options) {
  TORCH_CHECK(options.max_norm == std::numeric_limits<double>::infinity() && options.inv_loss_scale == 1, kName,
              ": expected gradients that are released in backward without clipping by their whole norm and without a "
              "loss scale, which may skip a step, got max_norm ",
              options.max_norm, " and inv_loss_scale ", options.inv_loss_scale);
}

}  // namespace

AdamW::AdamW(const std::vector<NamedGroup>& groups, AdamWSettings settings)
    : NamedOptimizer(groups), settings_(std::move(settings)) {
  std::set<std::string> names;
  for (size_t g = 0; g < groups.size(); ++g) {
    check_options(groups[g].options);
    for (const auto& [name, parameter] : groups[g].parameters) {
      TORCH_CHECK(names.insert(name).second, kName, ": expected each name once, got ", name, " twice");
      add_entry(name, parameter, g);
    }
  }
}

KeptMoment AdamW::zero_moment(const Tensor& parameter, Moment moment) const {
  KeptMoment zero{zeros(parameter.sizes(), dtype_of(settings_.optimizer_state, moment), settings_.home), {}};
  if (settings_.optimizer_state == StateKind::k8Bit)
    zero.scale = zeros({scale_count(parameter.numel())}, at::kHalf, settings_.home);
  return zero;
}

void AdamW::add_entry(const std::string& name, const Tensor& parameter, size_t group) {
  TORCH_CHECK(parameter.device().is_cpu() && parameter.is_contiguous(), kName, ": expected ", name,
              " to be a contiguous CPU tensor, got ", parameter.toString(), " with strides ", parameter.strides());
  const Format format = ops::format_of(parameter.scalar_type(), kName);
  const MasterKind masters = format == Format::kFp32 ? MasterKind::kFp32 : settings_.masters;
  TORCH_CHECK(masters == MasterKind::kFp32 || format == Format::kBf16, kName, ": expected ", name,
              " to be BFloat16 or Float with masters ", recipe::name_of(kMasters, masters), ", got ",
              parameter.toString());
  const ParameterPlace place =
      settings_.places.empty() ? ParameterPlace{.number = entries_.size()} : settings_.places.at(entries_.size());
  const bool begins_a_group = place.begin % kernels::kStateGroup == 0 || parameter.numel() == 0;
  TORCH_CHECK(settings_.optimizer_state != StateKind::k8Bit || begins_a_group, kName, ": expected the part of ", name,
              " to begin at a multiple of ", kernels::kStateGroup, " elements with 8bit states, got ", place.begin);
  const torch::NoGradGuard no_grad;
  Entry entry{.name = name,
              .parameter = parameter,
              .group = group,
              .place = place,
              .moment1 = zero_moment(parameter, Moment::kFirst),
              .moment2 = zero_moment(parameter, Moment::kSecond),
              .steps = torch::zeros({1}, torch::kInt64),
              .master = {},
              .correction = {},
              .seen_version = static_cast<int64_t>(parameter._version())};
  if (masters == MasterKind::kFp32) entry.master = parameter.to(torch::kFloat32);
  if (masters == MasterKind::kSplit) entry.correction = zeros(parameter.sizes(), at::kChar, settings_.home);
  entries_.push_back(std::move(entry));
}

// Somebody else wrote the parameter (loaded a checkpoint, say): the master follows, unless it already rounds to what
// was written. A split weight follows by itself: a correction moves it by half an ulp at most.
void AdamW::refresh_master(Entry& entry) const {
  if (!entry.has_own_master() || entry.seen_version == entry.parameter._version()) return;
  if (!torch::equal(entry.master.to(entry.parameter.scalar_type()), entry.parameter)) {
    entry.master.copy_(entry.parameter);
  }
  entry.seen_version = entry.parameter._version();
}

const Tensor& AdamW::checked_gradient(const Entry& entry) {
  const Tensor& grad = entry.parameter.grad();
  TORCH_CHECK(!grad.is_sparse() && grad.device().is_cpu(), kName, ": expected a dense CPU gradient of ", entry.name,
              ", got ", grad.toString());
  TORCH_CHECK(grad.sizes() == entry.parameter.sizes(), kName, ": expected a gradient of shape ",
              entry.parameter.sizes(), " for ", entry.name, ", got ", grad.sizes());
  return grad;
}

GradientMeasure AdamW::measure(double inv_loss_scale) const {
  std::vector<const Entry*> entries;
  for (const Entry& entry : entries_) {
    if (entry.parameter.grad().defined()) entries.push_back(&entry);
  }
  return measure_of(entries, inv_loss_scale);
}

GradientMeasure AdamW::measure_of(const std::vector<const Entry*>& entries, double inv_loss_scale) const {
  std::vector<Tensor> grads;
  std::vector<kernels::GradientTensor> spans;
  double bytes = 0;
  for (const Entry* entry : entries) {
    grads.push_back(checked_gradient(*entry).contiguous());
    spans.push_back({grads.back().data_ptr(), ops::format_of(grads.back().scalar_type(), kName), grads.back().numel()});
    bytes += static_cast<double>(grads.back().nbytes());
  }
  const watch::Span span("gradient norm", {.bytes = bytes});
  const kernels::GradientSummary summary = kernels::gradient_pass(
      {.tensors = spans.data(), .tensor_count = spans.size(), .scale = static_cast<float>(inv_loss_scale)});
  GradientMeasure measure{
      .sum_of_squares = summary.sum_of_squares, .non_finite = summary.non_finite, .first_non_finite = {}};
  rest(grads);
  if (summary.non_finite > 0) measure.first_non_finite = entries[static_cast<size_t>(summary.first_non_finite)]->name;
  return measure;
}

void AdamW::rest(at::TensorList tensors) const {
  if (!settings_.home.rest) return;
  for (const Tensor& tensor : tensors) settings_.home.rest(tensor);
}

StepReport AdamW::apply(const GradientMeasure& measure, const UpdateOptions& options) {
  TORCH_CHECK(options.max_norm >= 0, kName, ": expected max_norm >= 0, got ", options.max_norm);
  // A loss scale that has backed off to nothing has an inverse of Inf, and a step that is skipped.
  TORCH_CHECK(options.inv_loss_scale > 0, kName, ": expected inv_loss_scale > 0, got ", options.inv_loss_scale);
  const torch::NoGradGuard no_grad;
  StepReport report{.skipped = measure.non_finite > 0,
                    .grad_norm = std::sqrt(measure.sum_of_squares),
                    .clip_factor = 1,
                    .non_finite = measure.non_finite,
                    .first_non_finite = measure.first_non_finite};
  if (report.skipped) {
    ++skipped_steps_;
  } else {
    report.clip_factor = ops::clip_factor(options.max_norm, report.grad_norm);
    const auto grad_scale = static_cast<float>(options.inv_loss_scale * report.clip_factor);
    for (Entry& entry : entries_) {
      if (entry.parameter.grad().defined()) update_entry(entry, checked_gradient(entry).contiguous(), grad_scale);
    }
  }
  last_report_ = report;
  return report;
}

StepReport AdamW::update(const UpdateOptions& options) {
  if (!released_) return apply(measure(options.inv_loss_scale), options);
  check_released(options);
  const GradientMeasure released = *std::exchange(released_, std::nullopt);
  StepReport report = apply(measure(1), options);
  report.grad_norm = std::hypot(report.grad_norm, std::sqrt(released.sum_of_squares));
  report.non_finite += released.non_finite;
  if (released.non_finite > 0) report.first_non_finite = released.first_non_finite;
  return last_report_ = report;
}

GradientRelease AdamW::release_gradients(const UpdateOptions& options) {
  check_released(options);
  std::vector<GradientRelease::Hook> hooks;
  for (Entry& entry : entries_) {
    if (entry.parameter.requires_grad()) hooks.push_back({entry.parameter, [this, &entry] { update_and_free(entry); }});
  }
  return GradientRelease(std::move(hooks));
}

void AdamW::update_and_free(Entry& entry) {
  const torch::NoGradGuard no_grad;
  const Tensor grad = checked_gradient(entry).contiguous();
  const GradientMeasure measure = measure_of({&entry}, 1);
  if (!released_) released_.emplace();
  released_->sum_of_squares += measure.sum_of_squares;
  released_->non_finite += measure.non_finite;
  if (released_->first_non_finite.empty()) released_->first_non_finite = measure.first_non_finite;
  if (measure.non_finite == 0) update_entry(entry, grad, 1);
  entry.parameter.mutable_grad().reset();
}

void AdamW::update_entry(Entry& entry, const Tensor& grad, float grad_scale) {
  refresh_master(entry);
  const auto& options = static_cast<const AdamWOptions&>(param_groups_[entry.group].options());
  int64_t& step = *entry.steps.data_ptr<int64_t>();
  const bool is_wide = entry.parameter.scalar_type() == at::kFloat;
  const auto scale_of = [](const KeptMoment& moment) {
    return moment.scale.defined() ? reinterpret_cast<uint16_t*>(moment.scale.data_ptr<at::Half>()) : nullptr;
  };
  const Tensor own_master = entry.has_own_master() ? entry.master : Tensor();
  const watch::Span span("adamw",
                         {.bytes = ops::traffic(grad) + 2 * ops::traffic(entry.parameter, own_master, entry.correction,
                                                                         entry.moment1.values, entry.moment1.scale,
                                                                         entry.moment2.values, entry.moment2.scale)});
  kernels::adamw({.master = entry.master.defined() ? entry.master.data_ptr<float>() : nullptr,
                  .narrow = is_wide ? nullptr : entry.parameter.data_ptr(),
                  .narrow_format = is_wide ? Format::kBf16 : ops::format_of(entry.parameter.scalar_type(), kName),
                  .correction = entry.correction.defined() ? entry.correction.data_ptr<int8_t>() : nullptr,
                  .grad = grad.data_ptr(),
                  .grad_format = ops::format_of(grad.scalar_type(), kName),
                  .states = settings_.optimizer_state,
                  .moment1 = entry.moment1.values.data_ptr(),
                  .moment2 = entry.moment2.values.data_ptr(),
                  .scale1 = scale_of(entry.moment1),
                  .scale2 = scale_of(entry.moment2),
                  .seed = seed_of(settings_.seed, entry.place.number),
                  .first = entry.place.begin,
                  .count = entry.parameter.numel(),
                  .lr = options.lr(),
                  .beta1 = std::get<0>(options.betas()),
                  .beta2 = std::get<1>(options.betas()),
                  .eps = options.eps(),
                  .weight_decay = options.weight_decay(),
                  .step = ++step,
                  .grad_scale = grad_scale});
  // Saved tensors and caches of quantized weights must see that the weight has changed.
  entry.parameter.unsafeGetTensorImpl()->bump_version();
  entry.seen_version = entry.parameter._version();
  rest({entry.parameter, grad, entry.moment1.values, entry.moment2.values});
  for (const Tensor& tensor : {own_master, entry.correction, entry.moment1.scale, entry.moment2.scale}) {
    if (tensor.defined()) rest(tensor);
  }
}

std::map<std::string, Tensor> AdamW::state_dict() const {
  std::map<std::string, Tensor> state;
  for (const Entry& entry : entries_) {
    const auto put = [&](const char* name, const Tensor& tensor) {
      if (tensor.defined()) state[entry.name + name] = tensor;
    };
    put(".exp_avg", entry.moment1.values);
    put(".exp_avg_scale", entry.moment1.scale);
    put(".exp_avg_sq", entry.moment2.values);
    put(".exp_avg_sq_scale", entry.moment2.scale);
    put(".step", entry.steps);
    if (entry.has_own_master()) put(".master", entry.master);
    put(".correction", entry.correction);
  }
  return state;
}

std::map<std::string, Tensor> AdamW::converted(const std::map<std::string, Tensor>& state) const {
  std::map<std::string, Tensor> result;
  for (const Entry& entry : entries_) {
    const auto convert_moment = [&](const std::string& name, const KeptMoment& mine, Moment moment) {
      KeptMoment kept = moment_in(state, name, mine, dtype_of(StateKind::k8Bit, moment));
      if (kept.values.scalar_type() != mine.values.scalar_type())
        kept = keep_moment(wide_moment(kept), settings_.optimizer_state, moment);
      result[name] = kept.values;
      if (kept.scale.defined()) result[name + "_scale"] = kept.scale;
    };
    convert_moment(entry.name + ".exp_avg", entry.moment1, Moment::kFirst);
    convert_moment(entry.name + ".exp_avg_sq", entry.moment2, Moment::kSecond);
    result[entry.name + ".step"] = find(state, entry.name + ".step");
    expect_state(entry.name + ".step", result[entry.name + ".step"], entry.steps, {at::kLong});
    if (entry.parameter.scalar_type() == at::kFloat) continue;
    const Tensor master = find(state, entry.name + ".master"), correction = find(state, entry.name + ".correction");
    if (master.defined()) expect_state(entry.name + ".master", master, entry.parameter, {at::kFloat});
    if (correction.defined()) expect_state(entry.name + ".correction", correction, entry.parameter, {at::kChar});
    if (entry.has_own_master()) {
      const bool is_split = correction.defined() && entry.parameter.scalar_type() == at::kBFloat16;
      result[entry.name + ".master"] = master.defined() ? master
                                       : is_split       ? join_weight(entry.parameter, correction.contiguous())
                                                        : entry.parameter.to(at::kFloat);
    } else if (entry.correction.defined()) {
      result[entry.name + ".correction"] = correction.defined() ? correction
                                           : master.defined()   ? correction_of(master.contiguous())
                                                                : torch::zeros_like(entry.correction);
    }
  }
  return result;
}

void AdamW::load_state_dict(const std::map<std::string, Tensor>& state) {
  const torch::NoGradGuard no_grad;
  const std::map<std::string, Tensor> values = converted(state);
  std::set<std::string> known;
  for (const Entry& entry : entries_) {
    for (const char* kind : kMomentStates) known.insert(entry.name + kind);
    if (entry.parameter.scalar_type() == at::kFloat) continue;
    for (const char* kind : kWeightStates) known.insert(entry.name + kind);
  }
  for (const auto& [name, tensor] : state) {
    TORCH_CHECK(known.count(name) == 1, kName, ": expected the state of this optimizer's parameters, got ", name);
  }
  for (auto& [name, tensor] : state_dict()) tensor.copy_(values.at(name));
}

void AdamW::save(torch::serialize::OutputArchive& archive) const {
  for (const auto& [name, tensor] : state_dict()) archive.write(name, tensor, /*is_buffer=*/true);
}

void AdamW::load(torch::serialize::InputArchive& archive) {
  std::map<std::string, Tensor> state;
  const auto read = [&](const std::string& name) {
    Tensor tensor;
    if (archive.try_read(name, tensor, /*is_buffer=*/true)) state[name] = tensor;
  };
  for (const Entry& entry : entries_) {
    for (const char* kind : kMomentStates) read(entry.name + kind);
    for (const char* kind : kWeightStates) read(entry.name + kind);
  }
  load_state_dict(state);
}

}  // namespace plimsoll::optim
