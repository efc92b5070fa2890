#include "plimsoll/autoscale/module.h"

#include <ATen/core/grad_mode.h>

#include "plimsoll/autoscale/parts.h"
#include "plimsoll/autoscale/registration.h"
#include "plimsoll/autoscale/several_scales.h"
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

void add_scaled(State& state, const std::string& name, const at::Tensor& parameter) {
  const ScaledTensorImpl& impl = scaled_impl(parameter);
  state[name] = impl.data().clone();
  state[name + kScaleSuffix] = scale_of(parameter);
  if (impl.shared().remainder.defined()) state[name + kRemainderSuffix] = impl.shared().remainder.clone();
}

at::Tensor find_in(const State& state, const std::string& name) {
  const auto found = state.find(name);
  return found == state.end() ? at::Tensor() : found->second;
}

// A parameter of a state that has a scale for it, like `target`.
at::Tensor scaled_in(const State& state, const std::string& name, const at::Tensor& target) {
  const std::shared_ptr<Session>& session = scaled_impl(target).shared().session;
  const at::Tensor scaled = scaled_array(state.at(name), state.at(name + kScaleSuffix), session);
  const at::Tensor remainder = find_in(state, name + kRemainderSuffix);
  if (remainder.defined()) set_remainder(scaled, remainder);
  return with_logical(scaled, target.scalar_type());
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
  set_scaled(target, has_scale ? scaled_in(state, name, target)
                               : as_scaled(data.to(target.scalar_type()), scaled_impl(target).shared().session));
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
    parameter.set_data(value_to_write(scaled_impl(parameter)));
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
      add_scaled(state, parameter.key(), parameter.value());
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
