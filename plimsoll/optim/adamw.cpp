#include "plimsoll/optim/adamw.h"

#include <torch/serialize/archive.h>

#include <cmath>
#include <set>

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

void check_options(const AdamWOptions& options) {
  const auto [beta1, beta2] = options.betas();
  TORCH_CHECK(options.lr() >= 0, kName, ": expected lr >= 0, got ", options.lr());
  TORCH_CHECK(options.eps() >= 0, kName, ": expected eps >= 0, got ", options.eps());
  TORCH_CHECK(options.weight_decay() >= 0, kName, ": expected weight_decay >= 0, got ", options.weight_decay());
  TORCH_CHECK(beta1 >= 0 && beta1 < 1 && beta2 >= 0 && beta2 < 1, kName, ": expected betas in [0, 1), got ", beta1,
              " and ", beta2);
  TORCH_CHECK(!options.amsgrad(), kName, ": expected amsgrad = false, got true");
}

Tensor zeros_like(const Tensor& parameter, Format format, const StateHome& home) {
  const at::ScalarType dtype = ops::dtype_of(format);
  return home.zeros ? home.zeros(parameter.sizes(), dtype) : torch::zeros(parameter.sizes(), dtype);
}

}  // namespace

AdamW::AdamW(const std::vector<NamedGroup>& groups, AdamWSettings settings)
    : NamedOptimizer(groups), settings_(std::move(settings)) {
  TORCH_CHECK(settings_.moment_format == Format::kFp32 || settings_.moment_format == Format::kBf16, kName,
              ": expected moments in fp32 or bf16, got ", format::info(settings_.moment_format).name);
  std::set<std::string> names;
  for (size_t g = 0; g < groups.size(); ++g) {
    check_options(groups[g].options);
    for (const auto& [name, parameter] : groups[g].parameters) {
      TORCH_CHECK(names.insert(name).second, kName, ": expected each name once, got ", name, " twice");
      add_entry(name, parameter, g);
    }
  }
}

void AdamW::add_entry(const std::string& name, const Tensor& parameter, size_t group) {
  TORCH_CHECK(parameter.device().is_cpu() && parameter.is_contiguous(), kName, ": expected ", name,
              " to be a contiguous CPU tensor, got ", parameter.toString(), " with strides ", parameter.strides());
  const bool wide = ops::format_of(parameter.scalar_type(), kName) == Format::kFp32;
  const torch::NoGradGuard no_grad;
  entries_.push_back({.name = name,
                      .parameter = parameter,
                      .group = group,
                      .number = settings_.numbers.empty() ? entries_.size() : settings_.numbers.at(entries_.size()),
                      .moment1 = zeros_like(parameter, settings_.moment_format, settings_.home),
                      .moment2 = zeros_like(parameter, settings_.moment_format, settings_.home),
                      .steps = torch::zeros({1}, torch::kInt64),
                      .master = wide ? parameter : parameter.to(torch::kFloat32),
                      .seen_version = static_cast<int64_t>(parameter._version())});
}

// Somebody else wrote the parameter (loaded a checkpoint, say): the master follows, unless it already rounds to what
// was written.
void AdamW::refresh_master(Entry& entry) const {
  if (entry.master.is_same(entry.parameter) || entry.seen_version == entry.parameter._version()) return;
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
  std::vector<Tensor> grads;
  std::vector<kernels::GradientTensor> spans;
  double bytes = 0;
  for (const Entry& entry : entries_) {
    if (!entry.parameter.grad().defined()) continue;
    entries.push_back(&entry);
    grads.push_back(checked_gradient(entry).contiguous());
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

StepReport AdamW::update(const UpdateOptions& options) { return apply(measure(options.inv_loss_scale), options); }

void AdamW::update_entry(Entry& entry, const Tensor& grad, float grad_scale) {
  refresh_master(entry);
  const auto& options = static_cast<const AdamWOptions&>(param_groups_[entry.group].options());
  int64_t& step = *entry.steps.data_ptr<int64_t>();
  const bool narrow = !entry.master.is_same(entry.parameter);
  const watch::Span span("adamw",
                         {.bytes = ops::traffic(grad) + 2 * ops::traffic(entry.master, entry.moment1, entry.moment2)});
  kernels::adamw({.master = entry.master.data_ptr<float>(),
                  .grad = grad.data_ptr(),
                  .grad_format = ops::format_of(grad.scalar_type(), kName),
                  .moment1 = entry.moment1.data_ptr(),
                  .moment2 = entry.moment2.data_ptr(),
                  .moment_format = settings_.moment_format,
                  .seed = seed_of(settings_.seed, entry.number),
                  .count = entry.parameter.numel(),
                  .lr = options.lr(),
                  .beta1 = std::get<0>(options.betas()),
                  .beta2 = std::get<1>(options.betas()),
                  .eps = options.eps(),
                  .weight_decay = options.weight_decay(),
                  .step = ++step,
                  .grad_scale = grad_scale,
                  .narrow = narrow ? entry.parameter.data_ptr() : nullptr,
                  .narrow_format = ops::format_of(entry.parameter.scalar_type(), kName)});
  // Saved tensors and caches of quantized weights must see that the weight has changed.
  entry.parameter.unsafeGetTensorImpl()->bump_version();
  entry.seen_version = entry.parameter._version();
  rest({entry.master, grad, entry.moment1, entry.moment2});
}

std::map<std::string, Tensor> AdamW::state_dict() const {
  std::map<std::string, Tensor> state;
  for (const Entry& entry : entries_) {
    state[entry.name + ".exp_avg"] = entry.moment1;
    state[entry.name + ".exp_avg_sq"] = entry.moment2;
    state[entry.name + ".step"] = entry.steps;
    if (!entry.master.is_same(entry.parameter)) state[entry.name + ".master"] = entry.master;
  }
  return state;
}

void AdamW::load_state_dict(const std::map<std::string, Tensor>& state) {
  const torch::NoGradGuard no_grad;
  std::map<std::string, Tensor> mine = state_dict();
  for (const auto& [name, tensor] : mine) {
    const auto found = state.find(name);
    TORCH_CHECK(found != state.end(), kName, ": expected ", name, " in the state, got none");
    const Tensor& given = found->second;
    TORCH_CHECK(given.scalar_type() == tensor.scalar_type() && given.sizes() == tensor.sizes(), kName, ": expected ",
                name, " to be ", tensor.scalar_type(), " ", tensor.sizes(), ", got ", given.scalar_type(), " ",
                given.sizes());
  }
  for (const auto& [name, tensor] : state) {
    TORCH_CHECK(mine.count(name) == 1, kName, ": expected the state of this optimizer's parameters, got ", name);
  }
  for (auto& [name, tensor] : mine) tensor.copy_(state.at(name));
}

void AdamW::save(torch::serialize::OutputArchive& archive) const {
  for (const auto& [name, tensor] : state_dict()) archive.write(name, tensor, /*is_buffer=*/true);
}

void AdamW::load(torch::serialize::InputArchive& archive) {
  std::map<std::string, Tensor> state;
  for (const auto& [name, tensor] : state_dict()) {
    Tensor& read = state[name];
    archive.read(name, read, /*is_buffer=*/true);
  }
  load_state_dict(state);
}

}  // namespace plimsoll::optim
