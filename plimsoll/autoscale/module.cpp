#include "plimsoll/autoscale/module.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/scalar_tensor.h>

#include <cmath>

#include "plimsoll/autoscale/parts.h"
#include "plimsoll/autoscale/registration.h"
#include "plimsoll/autoscale/storage.h"

namespace plimsoll::autoscale {
namespace {

constexpr const char* kScaleSuffix = ".scale";
constexpr const char* kRemainderSuffix = ".remainder";

// A plain tensor's memory becomes that of a scaled one.
void set_scaled(at::Tensor parameter, const at::Tensor& scaled) {
  scaled_impl(scaled).shared().parameter = true;
  parameter.set_data(carried(scaled));
}

void add_scaled(State& state, const std::string& name, const ScaledTensorImpl& impl) {
  const Scale& scale = impl.scale();
  state[name] = impl.data().clone();
  const double factor = scale.is_zero() ? 0 : std::exp2(scale.exponent);
  state[name + kScaleSuffix] = at::scalar_tensor(factor, at::kDouble);
  if (impl.shared().remainder.defined()) state[name + kRemainderSuffix] = impl.shared().remainder.clone();
}

at::Tensor find_in(const State& state, const std::string& name) {
  const auto found = state.find(name);
  return found == state.end() ? at::Tensor() : found->second;
}

// A parameter of a state that has a scale for it.
Parts parts_of(const State& state, const std::string& name, const at::Tensor& data) {
  int exponent = 0;
  const double scale = state.at(name + kScaleSuffix).item<double>();
  TORCH_CHECK(scale == 0 || std::fabs(std::frexp(scale, &exponent)) == 0.5, "load_state: expected ", name, kScaleSuffix,
              " to be a power of two, got ", scale);
  const at::Tensor shown = scale == 0 ? data.mul(0) : data;
  return {
      .data = shown, .exponent = scale == 0 ? 0 : exponent - 1, .remainder = find_in(state, name + kRemainderSuffix)};
}

void load_into(at::Tensor target, const State& state, const std::string& name) {
  const at::Tensor data = find_in(state, name);
  TORCH_CHECK(data.defined() && data.sizes() == target.sizes(), "load_state: expected ", name, " of ", target.sizes(),
              ", got ", data.defined() ? c10::str(data.sizes()) : "none");
  const bool has_scale = find_in(state, name + kScaleSuffix).defined();
  if (!is_scaled(target)) {
    TORCH_CHECK(!has_scale, "load_state: expected ", name, " to be scaled, as its state is; as_scaled() makes it so");
    target.copy_(data);
    return;
  }
  const std::shared_ptr<Session> session = scaled_impl(target).shared().session;
  set_scaled(target, has_scale ? join(parts_of(state, name, data), session) : as_scaled(data, session));
}

}  // namespace

void as_scaled(torch::nn::Module& module, const std::shared_ptr<Session>& session) {
  check_registered();
  const at::NoGradGuard no_grad;
  for (const at::Tensor& parameter : module.parameters()) {
    if (!parameter.is_floating_point() || is_scaled(parameter)) continue;
    set_scaled(parameter, as_scaled(parameter.detach(), session));
  }
}

void as_values(torch::nn::Module& module) {
  const at::NoGradGuard no_grad;
  for (at::Tensor& parameter : module.parameters()) {
    if (!is_scaled(parameter)) continue;
    const BelowAutoscale below;
    const ScaledTensorImpl& impl = scaled_impl(parameter);
    parameter.set_data(data_to_write(impl, impl.scale().is_zero() ? 0 : impl.scale().exponent).to(at::kFloat));
  }
}

Scope::Scope(torch::nn::Module& module, const Settings& settings)
    : module_(module), session_(std::make_shared<Session>(settings)) {
  as_scaled(module_, session_);
}

Scope::~Scope() { as_values(module_); }

State state_of(const torch::nn::Module& module) {
  const at::NoGradGuard no_grad;
  State state;
  for (const auto& parameter : module.named_parameters()) {
    if (is_scaled(parameter.value())) {
      add_scaled(state, parameter.key(), scaled_impl(parameter.value()));
    } else {
      state[parameter.key()] = parameter.value().detach().clone();
    }
  }
  for (const auto& buffer : module.named_buffers()) state[buffer.key()] = buffer.value().detach().clone();
  return state;
}

void load_state(torch::nn::Module& module, const State& state) {
  const at::NoGradGuard no_grad;
  for (const auto& parameter : module.named_parameters()) load_into(parameter.value(), state, parameter.key());
  for (const auto& buffer : module.named_buffers()) load_into(buffer.value(), state, buffer.key());
}

}  // namespace plimsoll::autoscale
