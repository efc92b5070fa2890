#include "plimsoll/autoscale/moves.h"

#include <ATen/ops/full.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "plimsoll/autoscale/scaled_tensor_impl.h"
#include "plimsoll/autoscale/storage.h"

namespace plimsoll::autoscale {
namespace {

using torch::jit::Stack;

c10::IValue& argument(const Plan& plan, Stack& stack, size_t index) {
  return stack[stack.size() - plan.arguments.size() + index];
}

void finish_with(const Plan& plan, Stack& stack, at::Tensor result) {
  torch::jit::drop(stack, plan.arguments.size());
  stack.emplace_back(std::move(result));
}

void count_move(const Plan& plan, const at::Tensor& tensor) {
  scaled_impl(tensor).shared().session->count(plan.name, &CallCounts::storage);
}

at::ScalarType asked_dtype(const Plan& plan, Stack& stack, const at::Tensor& self) {
  const c10::IValue& dtype = argument(plan, stack, static_cast<size_t>(plan.dtype_argument));
  return dtype.isNone() ? self.scalar_type() : dtype.toScalarType();
}

// A tensor of its kind, of data that `plan` makes from the data of self. Of a dtype that is not floating point: plain.
void like(const Plan& plan, Stack& stack, const Scale& scale, bool wide) {
  const at::Tensor self = argument(plan, stack, 0).toTensor();
  const ScaledTensorImpl& impl = scaled_impl(self);
  const at::ScalarType logical = asked_dtype(plan, stack, self);
  const std::shared_ptr<Session>& session = impl.shared().session;
  const bool floating = at::isFloatingType(logical);
  count_move(plan, self);
  const BelowAutoscale below;
  argument(plan, stack, 0) = impl.data();
  argument(plan, stack, static_cast<size_t>(plan.dtype_argument)) =
      static_cast<int64_t>(floating ? storage_dtype(*session, self.dim(), wide) : logical);
  plan.run.callBoxed(stack);
  if (!floating) return;
  const at::Tensor data = torch::jit::pop(stack).toTensor();
  const bool gradient = scaled_impl(self).shared().gradient;
  stack.emplace_back(
      make_scaled(data, {.scale = scale, .session = session, .logical = logical, .wide = wide, .gradient = gradient}));
}

// The gradient of a loss with respect to itself, with which a backward pass begins: 1, where the session says.
at::Tensor first_gradient(const at::Tensor& loss) {
  const std::shared_ptr<Session>& session = scaled_impl(loss).shared().session;
  const Policy& policy = session->settings().policy;
  const int32_t exponent = policy.method == Method::kFixed ? policy.exponent : session->gradient_exponent();
  session->begin_backward();
  return make_scaled(at::full({}, std::exp2(-exponent), at::kFloat),
                     {.scale = {.exponent = exponent, .remainder = -1.0 * exponent, .bound = -1.0 * exponent},
                      .session = session,
                      .logical = loss.scalar_type(),
                      .gradient = true});
}

}  // namespace

void run_view(const Plan& plan, Stack& stack) {
  const at::Tensor self = argument(plan, stack, 0).toTensor();
  TORCH_CHECK(is_scaled(self), plan.name, ": expected a scaled tensor as the one that is viewed, got a plain one");
  TORCH_CHECK(
      plan.name != "aten::view.dtype",
      "view: expected a shape, got a dtype; the bits of a scaled tensor are not those of its value. Use to(dtype)");
  const ScaledTensorImpl& impl = scaled_impl(self);
  const BelowAutoscale below;
  argument(plan, stack, 0) = impl.data();
  plan.run.callBoxed(stack);
  for (size_t i = stack.size() - plan.results.size(); i < stack.size(); ++i) {
    c10::IValue& value = stack[i];
    if (value.isTensor()) {
      value = make_view(value.toTensor(), impl);
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(make_view(tensor, impl));
      value = std::move(list);
    }
  }
}

bool is_view_in_place(const Plan& plan) {
  constexpr std::string_view kNames[] = {"aten::squeeze_", "aten::unsqueeze_", "aten::t_", "aten::transpose_"};
  const std::string_view name = std::string_view(plan.name).substr(0, plan.name.find('.'));
  return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

void run_view_in_place(const Plan& plan, Stack& stack) {
  const at::Tensor self = argument(plan, stack, 0).toTensor();
  auto* impl = dynamic_cast<ScaledTensorImpl*>(self.unsafeGetTensorImpl());
  TORCH_CHECK(impl != nullptr && !impl->scales().defined(), plan.name,
              ": expected a scaled tensor of one scale that is no parameter of a C++ module");
  const BelowAutoscale below;
  const at::Tensor data = impl->data().detach();
  argument(plan, stack, 0) = data;
  plan.run.callBoxed(stack);
  impl->set_view(data);
  stack.back() = self;
}

void clone(const Plan& plan, Stack& stack) {
  const at::Tensor self = argument(plan, stack, 0).toTensor();
  const ScaledTensorImpl& impl = scaled_impl(self);
  const SharedScale& shared = impl.shared();
  count_move(plan, self);
  const BelowAutoscale below;
  argument(plan, stack, 0) = impl.data();
  plan.run.callBoxed(stack);
  const at::Tensor copy = make_scaled(torch::jit::pop(stack).toTensor(), {.scale = shared.scale,
                                                                          .session = shared.session,
                                                                          .logical = self.scalar_type(),
                                                                          .wide = shared.wide,
                                                                          .gradient = shared.gradient});
  scaled_impl(copy).shared().parameter = shared.parameter;
  if (impl.is_base() && shared.remainder.defined()) scaled_impl(copy).shared().remainder = shared.remainder.clone();
  stack.emplace_back(copy);
}

void copy_into(const Plan& plan, Stack& stack) {
  at::Tensor self = argument(plan, stack, 0).toTensor();
  const at::Tensor source = argument(plan, stack, 1).toTensor();
  count_move(plan, is_scaled(self) ? self : source);
  {
    const BelowAutoscale below;
    if (!is_scaled(self)) {
      self.copy_(value_of(source));
    } else if (is_scaled(source)) {
      const ScaledTensorImpl& impl = scaled_impl(source);
      const Scale scale = impl.scale();
      assign(self, {.data = data_to_write(impl), .exponent = scale.exponent}, &scale);
    } else {
      assign(self, {.data = source.is_floating_point() ? source : source.to(at::kFloat)});
    }
  }
  finish_with(plan, stack, self);
}

void fill(const Plan& plan, Stack& stack) {
  const at::Tensor self = argument(plan, stack, 0).toTensor();
  const at::Scalar number = argument(plan, stack, 1).toScalar();
  count_move(plan, self);
  {
    const BelowAutoscale below;
    assign(self, {.data = at::full({}, number, at::kFloat)});
  }
  finish_with(plan, stack, self);
}

void zero(const Plan& plan, Stack& stack) {
  const at::Tensor self = argument(plan, stack, 0).toTensor();
  count_move(plan, self);
  {
    const BelowAutoscale below;
    scaled_impl(self).data().zero_();
  }
  scaled_impl(self).shared().remainder.reset();
  scaled_impl(self).shared().codes = {};
  if (scaled_impl(self).is_whole()) scaled_impl(self).shared().scale = zero_scale();
  finish_with(plan, stack, self);
}

void to_dtype(const Plan& plan, Stack& stack) {
  const at::Tensor self = argument(plan, stack, 0).toTensor();
  const ScaledTensorImpl& impl = scaled_impl(self);
  const at::ScalarType logical = asked_dtype(plan, stack, self);
  count_move(plan, self);
  const BelowAutoscale below;
  if (!at::isFloatingType(logical)) return finish_with(plan, stack, value_of(self).to(logical));
  finish_with(plan, stack,
              make_scaled(impl.data().clone(), {.scale = impl.scale(),
                                                .session = impl.shared().session,
                                                .logical = logical,
                                                .wide = impl.shared().wide,
                                                .gradient = impl.shared().gradient}));
}

void zeros_like(const Plan& plan, Stack& stack) {
  const at::Tensor& self = argument(plan, stack, 0).toTensor();
  like(plan, stack, zero_scale(), scaled_impl(self).shared().wide || (self.requires_grad() && self.is_leaf()));
}

void ones_like(const Plan& plan, Stack& stack) {
  const at::Tensor self = argument(plan, stack, 0).toTensor();
  if (self.dim() > 0 || !at::isFloatingType(asked_dtype(plan, stack, self))) return like(plan, stack, Scale{}, false);
  count_move(plan, self);
  const BelowAutoscale below;
  finish_with(plan, stack, first_gradient(self));
}

}  // namespace plimsoll::autoscale
